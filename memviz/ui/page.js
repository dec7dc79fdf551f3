// What connects the parts of the page in the browser, without asking the server:
//   [data-light-by][data-light-group]  hovering or focusing lights those allocations in every timeline
//   [data-mv-at], [data-mv-pin], [data-mv-from][data-mv-to]  a click moves the timeline's moment, pin or view
//   [data-mv-picture]  a click saves the timeline as "png" or "svg"
//   [data-mv-copy]  a click copies that text;  [data-mv-dark], [data-mv-keys], [data-mv-close]  as they say
// and what keeps the address a link to what is seen.
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
    else if (button.dataset.mvShare !== undefined) copy(button, location.href);
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

  // -- the address, replaced and not pushed
  window.addEventListener("memviz:state", ({ detail }) => {
    const name = document.querySelector("[data-mv-link]")?.dataset.mvLink;
    if (!name) return;
    const query = new URLSearchParams(location.search);
    query.set("trace", name);
    for (const key of ["at", "from", "to", "pin", "order", "colour", "axis"]) {
      if (detail[key] === undefined || detail[key] === null || (key === "pin" && detail.pin < 0)) query.delete(key);
      else query.set(key, detail[key]);
    }
    history.replaceState(null, "", `${location.pathname}?${query}`);
  });
})();
