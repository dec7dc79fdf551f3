// @ts-check
// Two segment maps beside each other. They are the page's own, without their controls: the moment comes from elsewhere,
// and both have rows of one length, so that areas can be compared.
import { Component, el, mounting, nearest } from "../base.js";
import { sum } from "../segment_map/layout.js";
import { mount as mountMap } from "../segment_map/segment_map.js";

const MOST = 2;
const MOST_ROWS = 8;

class SegmentPair extends Component {
  sides = Array.from({ length: MOST }, () => this.side());

  build() {
    this.root.className = "mvp";
    this.root.append(...this.sides.map(({ root }) => root));
  }

  side() {
    const caption = el("h3", { class: "mvp-caption" });
    const place = el("div", { class: "mv-place" });
    const root = el("section", { class: "mvp-side", hidden: "" }, caption, place);
    const map = mountMap(root, { props: { value: null }, watch: () => {}, server: this.server, tell: this.tell });
    // A block's number is of this replay; elsewhere on the page it would name another one.
    place.addEventListener("click", (event) => nearest(event, ".mvs-plot") && event.stopPropagation(), true);
    place.addEventListener("keydown", (event) => event.key === "Enter" && nearest(event, ".mvs-plot") && event.stopPropagation(), true);
    new MutationObserver(() => this.level()).observe(root, { attributes: true, subtree: true, attributeFilter: ["data-drawn"] });
    return { caption, root, map };
  }

  /** @param {{ maps?: { caption: string, map: import("../segment_map/segment_map.js").Value }[] } | null} value */
  load(value) {
    this.sides.forEach(({ root, caption, map }, i) => {
      const shown = value?.maps?.[i];
      root.hidden = !shown;
      caption.textContent = shown ? shown.caption : "";
      map.load(shown ? shown.map : null);
    });
  }

  /** Rows as long as the longer ones of the two, and few, because the two are looked at as a whole. */
  level() {
    const drawn = this.sides.flatMap(({ map }) => (map.key && map.drawn && map.layout ? [{ map, layout: map.layout, total: sum(map.drawn.segments.size) }] : []));
    if (!drawn.length) return;
    let wanted = Math.max(...drawn.map(({ layout }) => layout.rowBytes));
    while (Math.max(...drawn.map(({ total }) => total)) > MOST_ROWS * wanted) wanted *= 2;
    for (const { map, layout } of drawn) if (layout.rowBytes !== wanted) map.setRowLength(wanted);
  }
}

export const mount = mounting(SegmentPair);
