// Keeps the page up to date: when the server tells of a new revision, the same page is fetched again, and the parts that
// differ take the place of the old ones. Focus, open details and the place one has scrolled to stay.
"use strict";
(() => {
  const words = document.getElementById("live-words");
  const state = document.getElementById("live-state");
  const note = document.getElementById("live-note");
  if (!words || !("EventSource" in window)) return;
  const policy = window.trustedTypes?.createPolicy("mien", { createHTML: (text) => text });
  const parse = (text) => new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
  let shown = document.body.dataset.revision;
  let isBusy = false;
  let wanted = null;

  const say = (kind, text) => {
    state.className = `live ${kind}`;
    words.textContent = text;
  };
  const clock = () => new Date().toISOString().slice(11, 19);

  const keepOpen = (from, to) => {
    for (const details of from.querySelectorAll("details[open][id]")) {
      const same = to.querySelector(`#${CSS.escape(details.id)}`);
      if (same) same.open = true;
    }
  };
  const pathOf = (element, within) => {
    const path = [];
    for (let at = element; at !== within; at = at.parentElement) path.unshift([...at.parentElement.children].indexOf(at));
    return path;
  };
  const replace = (old, fresh) => {
    const active = old.contains(document.activeElement) ? document.activeElement : null;
    const path = active && active !== old ? pathOf(active, old) : null;
    const scrolled = [...old.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    keepOpen(old, fresh);
    const made = document.importNode(fresh, true);
    old.replaceWith(made);
    [...made.querySelectorAll(".scroll")].forEach((box, index) => { [box.scrollLeft, box.scrollTop] = scrolled[index] ?? [0, 0]; });
    if (path) path.reduce((at, index) => at?.children[index], made)?.focus({ preventScroll: true });
  };
  const put = (page) => {
    const main = document.getElementById("main");
    const fresh = [...page.querySelectorAll("main [data-live][id]")];
    const ids = new Set(fresh.map((each) => each.id));
    for (const old of [...main.querySelectorAll("[data-live][id]")]) if (!ids.has(old.id)) old.remove();
    let before = null;
    for (const each of fresh) {
      const old = document.getElementById(each.id);
      if (old) {
        const closed = old.cloneNode(true);
        closed.querySelectorAll("details[open]").forEach((details) => { details.open = false; });
        if (closed.outerHTML !== each.outerHTML) replace(old, each);
      } else if (before) {
        before.after(document.importNode(each, true));
      }
      before = document.getElementById(each.id) ?? before;
    }
    document.title = page.title;
  };

  const refresh = async () => {
    if (isBusy) return;
    isBusy = true;
    while (wanted !== null && wanted !== shown) {
      const revision = wanted;
      try {
        const answer = await fetch(location.href, { headers: { "X-Mien-Live": "1" }, credentials: "same-origin" });
        if (answer.status === 401) {
          location.reload();
          return;
        }
        if (!answer.ok) throw new Error(String(answer.status));
        const page = parse(await answer.text());
        put(page);
        shown = revision;
        document.body.dataset.revision = page.body.dataset.revision;
        say("on", `Live ${clock()}`);
      } catch {
        say("off", "Not up to date");
        await new Promise((done) => setTimeout(done, 5000));
      }
    }
    isBusy = false;
  };

  // Browsers open six connections to one server, over all tabs: so only a page that somebody sees holds one of them.
  let events = null;
  const listen = () => {
    if (events || document.hidden) return;
    events = new EventSource(`/events?since=${encodeURIComponent(shown)}`);
    events.addEventListener("open", () => say("on", `Live ${clock()}`));
    events.addEventListener("error", () => say("off", "Not live"));
    events.addEventListener("end", () => location.reload());
    events.addEventListener("change", (event) => {
      const news = JSON.parse(event.data);
      wanted = news.revision;
      if (news.note) note.textContent = news.note;
      refresh();
    });
  };
  const hangUp = () => {
    events?.close();
    events = null;
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? hangUp() : listen()));
  addEventListener("pagehide", hangUp);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  listen();
})();
