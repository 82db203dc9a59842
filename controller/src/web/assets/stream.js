// Listens to the controller's events and says when the page must be loaded again.
//
// The calendar and `live.js` open one stream each page. The controller sends something at least every five seconds, so
// silence means that the connection is dead. A page that nobody sees listens to nothing.

import * as notices from "./notices.js";
import { setNow } from "./times.js";

const SILENCE_MS = 10_000;
const RETRY_MS = 5_000;
/** What nodes say of their GPUs is in no event, so the page also asks by itself. */
const ASK_MS = 15_000;

/**
 * Opens the stream of events.
 *
 * `changed` is called when the state may be another one, also after each connection. `restored` is called before it if
 * the fleet went back to an older state (an admin restored a backup).
 */
export function listen({ changed, restored = () => {} }) {
  let source = null;
  let index = -1;
  let incarnation = 0;
  let heard = performance.now();
  let retry = 0;

  function take(event) {
    heard = performance.now();
    notices.hide("silent");
    const data = JSON.parse(event.data);
    setNow(data.now_ms);
    toDecide(data.to_decide);
    const before = index;
    index = data.index;
    // 0: this controller does not know it yet. Another index alone means another controller, or one that has just started.
    if (incarnation !== 0 && data.incarnation > incarnation) restored();
    incarnation = Math.max(incarnation, data.incarnation);
    if (index !== before) changed();
  }

  function open() {
    clearTimeout(retry);
    source?.close();
    source = new EventSource("/api/v1/events");
    source.addEventListener("changed", take);
    source.addEventListener("alive", take);
    // The browser connects again by itself, unless the answer was a refusal. Then it gives up, and we ask why.
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) return;
      changed();
      clearTimeout(retry);
      retry = setTimeout(open, RETRY_MS);
    });
    source.addEventListener("open", () => {
      heard = performance.now();
      changed();
    });
  }

  // A hidden page needs no events. A browser allows six connections to a host, and each open tab would hold one.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(retry);
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source) {
      heard = performance.now();
      open();
    }
  });
  setInterval(() => {
    if (source && performance.now() - heard > SILENCE_MS) silent();
  }, 1000);
  setInterval(() => {
    if (source) changed();
  }, ASK_MS);
  open();
}

/** How many requests wait for the decision of this user, beside the tab where they are. */
function toDecide(count) {
  const mark = document.getElementById("to-decide");
  if (!mark || !Number.isInteger(count) || mark.dataset.count === String(count)) return;
  mark.dataset.count = count;
  mark.querySelector("b").textContent = count;
  mark.hidden = count === 0;
}

function silent() {
  const others = (document.body.dataset.controllers ?? "").split(" ").filter(Boolean);
  const next = others.find((address) => URL.canParse(address));
  const text = "This controller does not answer. What you see may be old.";
  if (!next) return notices.show("silent", text);
  const url = new URL(location.pathname + location.search, next);
  notices.show("silent", text, { text: `Open ${url.host} instead`, href: url.href });
}
