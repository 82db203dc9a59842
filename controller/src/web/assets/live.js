// Keeps the pages Fleet and Mine up to date, shows their times in the viewer's zone, releases reservations, and
// decides about requests and offers.
//
// The pages work without it, but their times are then in UTC and stay as they were when the page was loaded.

import { isUncertain } from "./api.js";
import { approve, deny } from "./decide.js";
import * as notices from "./notices.js";
import { accept, decline } from "./offer.js";
import { askRelease } from "./question.js";
import { send } from "./send.js";
import { listen } from "./stream.js";
import { localize, setNow } from "./times.js";

const main = document.querySelector("main");
/** Between two loads of this page: it is made anew for each browser. */
const LOAD_PAUSE_MS = 3_000;
let loading = false;
let again = false;

/** Fetches this page and puts its content in the place of what is shown. One at a time; the last wish counts. */
async function reload() {
  again = true;
  if (loading) return;
  loading = true;
  while (again) {
    again = false;
    await load().catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, LOAD_PAUSE_MS));
  }
  loading = false;
}

async function load() {
  const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(15_000) });
  if (answer.status === 401 || new URL(answer.url).pathname === "/login") return notices.loggedOut();
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  setNow(Number(page.body.dataset.nowMs));
  const fresh = page.querySelector("main");
  if (!fresh) return;
  localize(fresh);
  notices.hide("login");
  const stale = page.querySelector('#notices [data-key="stale"]');
  if (stale) notices.show("stale", stale.textContent);
  else notices.hide("stale");
  if (fresh.isEqualNode(main)) return;
  const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
  main.replaceChildren(...fresh.childNodes);
  if (!focused) return;
  // The button of what was decided is gone: the next one is as near.
  const next = document.getElementById(focused) ?? main.querySelector("[data-approve], [data-accept], [data-release]");
  next?.focus({ preventScroll: true });
}

async function release(button) {
  const { release: id, gpus, owner, begun } = button.dataset;
  const agreed = await askRelease({ id, owner, gpus, mine: true, begun: begun === "true" });
  if (!agreed) return;
  const failed = (error) =>
    isUncertain(error)
      ? `It is not known whether ${id} was released. Check below.`
      : `${id} was not released: ${error.message}`;
  await send(button, `/api/v1/reservations/${encodeURIComponent(id)}/release`, { key: "release", failed });
  reload();
}

main.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.release) release(button);
  if (button?.dataset.approve) approve(button).then(reload);
  if (button?.dataset.deny) deny(button).then(reload);
  if (button?.dataset.accept) accept(button).then(reload);
  if (button?.dataset.decline) decline(button).then(reload);
});
localize(main);
listen({ changed: reload });
