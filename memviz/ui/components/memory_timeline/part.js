// @ts-check
// What all parts of the timeline have: the timeline itself, and what it shows of the trace.

export class Part {
  /** @param {import("./timeline.js").MemoryTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  get viewport() {
    return this.timeline.viewport;
  }
}
