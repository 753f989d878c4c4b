// Pages are whole without this. With it, the parts marked data-live are fetched anew when the
// server says that something changed.
(() => {
  "use strict";

  const LEAST = 1500; // milliseconds between two refreshes
  const state = document.querySelector("[data-live-state]");
  let wanted = false;
  let busy = false;
  let last = 0;
  let timer = 0;

  function show(text, lost) {
    if (!state) return;
    state.hidden = false;
    state.classList.toggle("lost", lost);
    state.querySelector("[data-live-text]").textContent = text;
  }

  // Somebody is at work in there: what they have typed or opened must not go.
  function inUse(part) {
    if (part.contains(document.activeElement) && document.activeElement.matches("input, select, summary")) {
      return true;
    }
    return part.querySelector("details[open]") !== null;
  }

  function replace(part, fresh) {
    if (part.innerHTML === fresh.innerHTML || inUse(part)) return;
    const scroller = part.hasAttribute("data-follow") ? part.querySelector("pre") : null;
    const atEnd = scroller && scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 30;
    const top = scroller ? scroller.scrollTop : 0;
    const focused = part.contains(document.activeElement) ? address(part, document.activeElement) : null;
    part.replaceChildren(...fresh.childNodes);
    part.dataset.state = fresh.dataset.state || "";
    const now = scroller ? part.querySelector("pre") : null;
    if (now) now.scrollTop = atEnd ? now.scrollHeight : top;
    if (focused) {
      const again = part.querySelectorAll("a, button")[focused];
      if (again) again.focus({ preventScroll: true });
    }
  }

  function address(part, element) {
    return Array.prototype.indexOf.call(part.querySelectorAll("a, button"), element);
  }

  async function refresh() {
    if (busy || document.hidden) return;
    busy = true;
    wanted = false;
    last = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "X-Headgate-Live": "1" } });
      if (answer.redirected) {
        location.reload(); // the session has ended
        return;
      }
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh) replace(part, fresh);
      }
    } catch {
      show("not connected", true);
    } finally {
      busy = false;
      if (wanted) soon();
    }
  }

  function soon() {
    wanted = true;
    clearTimeout(timer);
    timer = setTimeout(refresh, Math.max(0, LEAST - (Date.now() - last)));
  }

  let before = false;
  const heard = {
    open: () => {
      show("live", false);
      if (before) soon(); // what changed while nobody listened was told to nobody
      before = true;
    },
    listening: () => {
      show("live", false);
      before = true;
    },
    change: soon,
    error: () => show("not connected", true),
  };

  function listen() {
    const from = document.body.dataset.stream;
    if (!from || !window.EventSource) return;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) soon();
    });
    if (navigator.locks && window.BroadcastChannel) share(from);
    else open(from, (what) => heard[what]());
  }

  function open(from, tell) {
    const stream = new EventSource(from);
    for (const what of ["open", "change", "error"]) stream.addEventListener(what, () => tell(what));
    return stream;
  }

  // A stream keeps a connection for as long as it is open, and browsers make no more than six to one
  // place: with a stream each, the seventh page would wait for ever. So the pages of a browser have
  // one together. Who has the lock listens and tells the others; when it goes, the next has the lock.
  function share(from) {
    const name = `headgate ${from}`;
    const others = new BroadcastChannel(name);
    let stream = null;
    others.addEventListener("message", ({ data }) => {
      if (data === "who listens") {
        if (stream && stream.readyState === EventSource.OPEN) others.postMessage("listening");
      } else if (data in heard) {
        heard[data]();
      }
    });
    navigator.locks.request(name, () => {
      stream = open(from, (what) => {
        heard[what]();
        others.postMessage(what);
      });
      return new Promise(() => {}); // until this page goes
    });
    others.postMessage("who listens");
  }

  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });

  for (const pre of document.querySelectorAll("[data-follow] pre")) pre.scrollTop = pre.scrollHeight;
  // What only this process knows of, such as an order under way, no event of the store tells.
  setInterval(() => {
    const part = document.querySelector('[data-live="always"]');
    if (part && part.dataset.state === "running") soon();
  }, 2000);
  listen();
})();
