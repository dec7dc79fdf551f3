// Two segment maps beside each other. They are the page's own (`memvizSegmentMap`), without their controls: the moment
// comes from elsewhere, and both have rows of one length, so that areas can be compared.
(() => {
  "use strict";
  const { el } = globalThis.memvizTimeline;
  const MOST = 2;
  const MOST_ROWS = 8;

  class Pair {
    constructor(host, { server }) {
      this.host = host;
      this.sides = Array.from({ length: MOST }, () => this.side(server));
      this.root = el("div", { class: "mvp" }, ...this.sides.map((each) => each.root));
    }

    side(server) {
      const caption = el("h3", { class: "mvp-caption" });
      const place = el("div", { class: "mvs-place" });
      const root = el("section", { class: "mvp-side", hidden: "" }, caption, place);
      const side = { caption, root, props: { value: {} }, told: [] };
      globalThis.memvizSegmentMap.mount(root, { props: side.props, watch: (_, changed) => side.told.push(changed), server });
      // A block's number is of this replay; elsewhere on the page it would name another one.
      const quiet = (event) => event.stopPropagation();
      place.addEventListener("click", (event) => event.target.closest(".mvs-plot") && quiet(event), true);
      place.addEventListener("keydown", (event) => event.key === "Enter" && event.target.closest(".mvs-plot") && quiet(event), true);
      new MutationObserver(() => this.level()).observe(root, { attributes: true, subtree: true, attributeFilter: ["data-drawn"] });
      return side;
    }

    load(value) {
      const place = this.host.querySelector(".mvp-place") || this.host;
      if (this.root.parentNode !== place) place.append(this.root);
      const maps = (value && value.maps) || [];
      this.sides.forEach((side, i) => {
        side.root.hidden = !maps[i];
        side.caption.textContent = maps[i] ? maps[i].caption : "";
        side.props.value = maps[i] ? maps[i].map : {};
        for (const changed of side.told) changed();
      });
    }

    /** Rows as long as the longer ones of the two, and few, because the two are looked at as a whole. */
    level() {
      const maps = this.sides.map((side) => side.root.memvizSegmentMap).filter((each) => each && each.key && each.drawn && each.layout);
      if (!maps.length) return;
      const total = (map) => map.drawn.segments.size.reduce((a, b) => a + b, 0);
      let wanted = Math.max(...maps.map((each) => each.layout.rowBytes));
      while (Math.max(...maps.map(total)) > MOST_ROWS * wanted) wanted *= 2;
      for (const map of maps) {
        if (map.layout.rowBytes === wanted) continue;
        map.rowBytes = wanted;
        map.highest = 0;
        map.draw();
      }
    }
  }

  function mount(element, { props, watch, server }) {
    const pair = new Pair(element, { server });
    watch("value", () => pair.load(props.value));
    pair.load(props.value);
  }

  globalThis.memvizSegmentPair = { mount };
})();
