// What connects the parts of the page in the browser, without asking the server:
//   [data-light-by][data-light-group]  hovering or focusing lights those allocations in every timeline
//   [data-mv-at], [data-mv-pin], [data-mv-from][data-mv-to]  a click moves the timeline's moment, pin or view
// The timeline hears `memviz:light` and `memviz:go`, and says `memviz:state` (see its README).
(() => {
  "use strict";
  const say = (name, detail) => window.dispatchEvent(new CustomEvent(name, { detail }));
  let lit = null;

  const light = (node) => {
    const wanted = node ? `${node.dataset.lightBy}|${node.dataset.lightGroup}` : null;
    if (wanted === lit) return;
    lit = wanted;
    say("memviz:light", node ? { by: node.dataset.lightBy, group: node.dataset.lightGroup } : null);
  };
  const nearest = (event, what) => (event.target instanceof Element ? event.target.closest(what) : null);

  document.addEventListener("pointerover", (event) => light(nearest(event, "[data-light-by]")));
  document.addEventListener("focusin", (event) => light(nearest(event, "[data-light-by]")));
  document.addEventListener("focusout", () => light(null));

  const number = (text) => (text === undefined ? undefined : Number(text));
  const go = (event) => {
    const node = nearest(event, "[data-mv-at],[data-mv-pin],[data-mv-from]");
    if (!node) return;
    const { mvAt, mvPin, mvFrom, mvTo } = node.dataset;
    say("memviz:go", { at: number(mvAt), pin: number(mvPin), from: number(mvFrom), to: number(mvTo) });
  };
  document.addEventListener("click", go);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target instanceof Element && event.target.tagName !== "BUTTON") go(event);
  });
})();
