// What connects the parts of the page in the browser, without asking the server:
//   [data-light-by][data-light-group]  hovering or focusing lights those allocations in every timeline
//   [data-mv-at], [data-mv-pin], [data-mv-from][data-mv-to]  a click moves the timeline's moment, pin or view
//   [data-mv-picture]  a click saves the timeline as "png" or "svg"
//   [data-mv-copy]  a click copies that text;  [data-mv-dark], [data-mv-keys], [data-mv-close]  as they say
// and what keeps the address a link to what is seen.
// The timeline hears `memviz:light` and `memviz:go`, and says `memviz:state` (see its README).
(() => {
  "use strict";
  const REST_MS = 60;
  const say = (name, detail) => window.dispatchEvent(new CustomEvent(name, { detail }));
  let lit = null;

  let lighting;

  /** What is rested on, not what is passed over: each asks the server. */
  const light = (node) => {
    const wanted = node ? `${node.dataset.lightBy}|${node.dataset.lightGroup}` : null;
    clearTimeout(lighting);
    if (wanted === lit) return;
    const detail = node ? { by: node.dataset.lightBy, group: node.dataset.lightGroup } : null;
    lighting = setTimeout(() => {
      lit = wanted;
      say("memviz:light", detail);
    }, node ? REST_MS : 0);
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

  // -- small controls

  const copy = async (button, text) => {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copying is not allowed here";
    }
    setTimeout(() => (button.textContent = before), 1500);
  };
  const keys = () => document.getElementById("mv-keys");
  const setDark = (dark) => {
    document.body.classList.toggle("dark", dark);
    try {
      localStorage.setItem("memviz-dark", dark ? "1" : "0");
    } catch {
      // Private windows may refuse; the choice then lasts as long as the page.
    }
  };
  document.addEventListener("click", (event) => {
    const button = nearest(event, "[data-mv-copy],[data-mv-dark],[data-mv-keys],[data-mv-close],[data-mv-share],[data-mv-picture]");
    if (!button) return;
    button.closest("details.mv-menu")?.removeAttribute("open");
    if (button.dataset.mvPicture !== undefined) return say("memviz:export", { kind: button.dataset.mvPicture });
    if (button.dataset.mvCopy !== undefined) copy(button, button.dataset.mvCopy);
    else if (button.dataset.mvShare !== undefined) {
      follow();
      copy(button, location.href);
    }
    else if (button.dataset.mvDark !== undefined) setDark(!document.body.classList.contains("dark"));
    else if (button.dataset.mvKeys !== undefined) keys()?.showModal();
    else button.closest("dialog")?.close();
  });
  const typing = (node) => node instanceof HTMLElement && (node.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(node.tagName));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (event.key === "?") keys()?.showModal();
    else if (event.key === "/") {
      const field = [...document.querySelectorAll("[data-mv-find] input, [data-mv-find] textarea, input[data-mv-find]")].find((each) => each.offsetParent);
      if (!field) return;
      event.preventDefault();
      field.focus();
    }
  });

  // -- on a narrow screen the sidebar is a drawer, and starts closed
  const closeDrawer = () => {
    if (window.innerWidth >= 760) return;
    const waiting = setInterval(() => {
      const toggle = document.querySelector(".sidebar.open button.toggle-button, .sidebar.open .toggle-button");
      if (!toggle) return;
      clearInterval(waiting);
      toggle.click();
    }, 50);
    setTimeout(() => clearInterval(waiting), 5000);
  };
  closeDrawer();

  // -- the mode a visitor chose, unless the address says which
  const startDark = () => {
    const named = new URLSearchParams(location.search).get("__theme");
    let chosen = null;
    try {
      chosen = localStorage.getItem("memviz-dark");
    } catch {
      chosen = null;
    }
    if (!named && chosen !== null) document.body.classList.toggle("dark", chosen === "1");
  };
  if (document.body) startDark();
  else document.addEventListener("DOMContentLoaded", startDark);

  // -- the address, replaced and not pushed: of the one trace that is explored, or of what a tab says of itself in
  //    [data-mv-query], whose trace is the open one unless it names several
  const OURS = [
    ...["trace", "at", "from", "to", "pin", "order", "colour", "axis", "tab"],
    ...["traces", "other", "by", "sort", "align", "step", "name", "overlay"],
    ...["memory", "card", "overhead", "expandable", "max_split", "roundup", "threshold", "more", "release"],
  ];
  let explored = null;

  function follow() {
    const seen = [...document.querySelectorAll("[data-mv-query]")].find((each) => each.parentElement.offsetParent);
    const link = document.querySelector("[data-mv-link]")?.dataset.mvLink;
    const query = new URLSearchParams(location.search);
    // Untouched, the address stays as it was typed; but it never speaks of another tab than the one that is seen.
    if (!seen && !(link && (explored || query.has("tab")))) return;
    for (const key of OURS) query.delete(key);
    const said = seen ? new URLSearchParams(seen.dataset.mvQuery) : new URLSearchParams(explored || {});
    if (link && !said.has("traces")) query.set("trace", link);
    for (const [key, value] of said) query.set(key, value);
    history.replaceState(null, "", `${location.pathname}?${query}`);
  }

  window.addEventListener("memviz:state", ({ detail }) => {
    const kept = ["at", "from", "to", "pin", "order", "colour", "axis"].filter((key) => detail[key] !== undefined && detail[key] !== null && !(key === "pin" && detail.pin < 0));
    explored = Object.fromEntries(kept.map((key) => [key, detail[key]]));
    follow();
  });
  const onceQuiet = (act, ms) => {
    let waiting;
    return () => {
      clearTimeout(waiting);
      waiting = setTimeout(act, ms);
    };
  };
  window.addEventListener("memviz:joined", onceQuiet(follow, 50));

  // -- what Gradio draws anew: how many are compared stands on that tab, and the address follows what is seen
  const COMPARE = "Compare";
  const count = () => {
    const compared = document.querySelectorAll("#traces .mv-badge").length;
    for (const tab of document.querySelectorAll('#tabs [role="tab"]')) {
      if (!tab.textContent.trim().startsWith(COMPARE)) continue;
      if (compared > 1) tab.dataset.count = compared;
      else delete tab.dataset.count;
    }
  };
  const redrawn = onceQuiet(() => {
    count();
    follow();
  }, 120);
  new MutationObserver((changes) => {
    if (changes.some(({ target }) => target instanceof Element && target.closest("#traces, #compare-place, #what-if-form, .tab-container"))) redrawn();
  }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-selected", "data-mv-query"] });

  // -- the pinned allocation on a narrow screen is a sheet: half the screen or nearly all of it, by its handle
  const tall = (yes) => document.body.classList.toggle("mv-tall", yes);
  document.addEventListener("pointerdown", (event) => {
    const handle = nearest(event, "[data-mv-sheet]");
    if (!handle) return;
    handle.setPointerCapture(event.pointerId);
    const begin = event.clientY;
    const done = (end) => {
      handle.removeEventListener("pointerup", done);
      const moved = end.clientY - begin;
      if (Math.abs(moved) < 8) return tall(!document.body.classList.contains("mv-tall"));
      if (moved < 0) return tall(true);
      if (document.body.classList.contains("mv-tall")) return tall(false);
      // Pulled down from half: away with it.
      handle.closest(".mv-pinned")?.querySelector("[data-mv-pin]")?.click();
    };
    handle.addEventListener("pointerup", done);
  });
  document.addEventListener("keydown", (event) => {
    if (!nearest(event, "[data-mv-sheet]") || !["Enter", " ", "ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    tall(event.key === "ArrowUp" || (event.key !== "ArrowDown" && !document.body.classList.contains("mv-tall")));
  });
})();
