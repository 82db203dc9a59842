// Runs the page Calendar: loads it, draws it, and connects the grid, the selection and the dialogs.
//
// What a person sees is in the URL (`?view=week&from=2026-11-30`), so a link shows the same to somebody else.

import { read } from "./api.js";
import { nodesOf } from "./bars.js";
import { Booking } from "./booking.js";
import { Details } from "./details.js";
import { Grid } from "./grid.js";
import * as notices from "./notices.js";
import { Selection } from "./selection.js";
import { listen } from "./stream.js";
import { HOUR, dayOf, dayText, dayWithYear, daysAfter, now, parseDay, zone } from "./times.js";

/** Days of each view. */
const VIEWS = { day: 1, week: 7, fortnight: 14 };
const KEYS = { d: "day", w: "week", f: "fortnight" };
/** How long a booking of this page is drawn although the state that was loaded does not have it yet. */
const AHEAD_MS = 5_000;
const TICK_MS = 15_000;

const { user, admin } = document.body.dataset;
const byId = (id) => document.getElementById(id);

class Calendar {
  constructor() {
    this.items = [];
    this.etag = null;
    this.made = new Map();
    this.grid = new Grid(byId("scroller"));
    this.booking = new Booking({
      booked: (made) => this.booked(made),
      closed: () => this.backToGrid(),
    });
    this.details = new Details({
      admin: admin === "true",
      changed: (made) => this.merge(made),
      failed: (text) => notices.report("change", text),
    });
    this.selection = new Selection(this.grid, byId("tip"), {
      book: (range) => this.book(range),
      show: (bar) => this.details.open(bar),
      release: (bar) => this.details.release(bar),
      move: (bar, until) => this.details.move(bar, until),
      turn: (step) => this.turn(step),
      say: (text) => { byId("said").textContent = text; },
      idle: () => this.draw(),
    });
    this.readUrl();
    this.connect();
    this.show();
    this.grid.scrollTo(Math.max(now() - HOUR, this.grid.from));
    this.load();
    listen({ changed: () => this.load(), restored: () => this.restored() });
    setInterval(() => this.tick(), TICK_MS);
  }

  // ---- what is shown

  readUrl() {
    const asked = new URLSearchParams(location.search);
    const narrow = matchMedia("(max-width: 700px)").matches;
    this.view = asked.get("view") in VIEWS ? asked.get("view") : narrow ? "day" : "week";
    // Without a day in the URL the calendar follows today, also after midnight.
    this.from = parseDay(asked.get("from"));
  }

  get begin() {
    return this.from ?? dayOf(now());
  }

  show() {
    const days = VIEWS[this.view];
    this.grid.setView(this.begin, days);
    const last = daysAfter(this.begin, days - 1);
    byId("period").textContent = days === 1
      ? dayWithYear(this.begin)
      : `${dayWithYear(this.begin)} to ${dayWithYear(last)}`;
    byId("zone").textContent = zone(this.begin);
    for (const button of document.querySelectorAll("[data-view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === this.view));
    }
    byId("hint").textContent = daysAfter(this.begin, days) <= now()
      ? "The calendar does not show past reservations. List them: fleet reservation list --all"
      : "";
    this.draw();
  }

  go(view, from) {
    this.selection.undo();
    this.view = view;
    this.from = from === dayOf(now()) ? null : from;
    const asked = new URLSearchParams({ view });
    if (this.from !== null) asked.set("from", dayText(this.from));
    history.replaceState(null, "", `?${asked}`);
    this.show();
    this.selection.drawCursor();
  }

  turn(step) {
    this.go(this.view, daysAfter(this.begin, step * VIEWS[this.view]));
  }

  today() {
    this.go(this.view, dayOf(now()));
    this.grid.scrollTo(now() - HOUR);
  }

  tick() {
    // At midnight a calendar that follows today turns its page, but not below a person's hands.
    if (!this.selection.busy && !this.booking.isOpen && this.grid.today !== dayOf(now())) this.show();
    else this.draw();
  }

  draw() {
    if (this.selection.busy) return;
    this.grid.draw(nodesOf(this.items, user));
    this.selection.redrawn();
    byId("empty").hidden = this.items.length > 0 || this.etag === null;
  }

  // ---- what is known

  /** Loads the calendar. One request at a time; a wish meanwhile is one more request. */
  async load() {
    this.wanted = true;
    if (this.loading) return;
    this.loading = true;
    while (this.wanted) {
      this.wanted = false;
      try {
        const found = await read("/api/v1/calendar", this.etag);
        notices.hide("load");
        notices.hide("login");
        if (found) this.take(found);
      } catch (error) {
        if (error.status !== 401) notices.show("load", `The calendar could not be loaded: ${error.message}`);
      }
    }
    this.loading = false;
  }

  take({ body, etag }) {
    this.items = body.items;
    this.etag = etag ?? "";
    const known = new Set(body.items.flatMap((item) => item.taken.map((one) => one.id)));
    for (const [id, reservation] of this.made) {
      if (known.has(id)) this.made.delete(id);
      else this.put(reservation);
    }
    this.draw();
  }

  /** A reservation was made. One that waits has no GPUs, so the calendar does not show it. */
  booked(made) {
    const waits = { requested: "waits for approval", waiting: "is on the waiting list" }[made.state];
    if (!waits) return this.keep(made);
    notices.report("waits", `${made.id} ${waits}. The page Mine shows it.`);
  }

  /** Draws a booking as the server answered it, also if a controller that is a moment behind does not know it yet. */
  keep(reservation) {
    this.made.set(reservation.id, reservation);
    setTimeout(() => {
      if (this.made.delete(reservation.id)) this.etag = null;
      this.load();
    }, AHEAD_MS);
    this.merge(reservation);
  }

  /** Draws a change as the server answered it. */
  merge(reservation) {
    notices.hide("change");
    this.put(reservation);
    this.draw();
    this.load();
  }

  put(made) {
    const over = ["ended", "cancelled"].includes(made.state);
    const uuids = over ? [] : made.gpus.map((gpu) => gpu.uuid);
    const one = {
      by: "reservation", id: made.id, owner: made.owner, from: made.starts_at, until: made.ends_at, note: made.note,
      idle_since: made.idle_since, idle_release_at: made.idle_release_at,
    };
    this.items = this.items.map((item) => {
      const others = item.taken.filter((taken) => taken.id !== made.id);
      const taken = uuids.includes(item.uuid) ? [...others, one] : others;
      return { ...item, taken: taken.sort((a, b) => Date.parse(a.from ?? 0) - Date.parse(b.from ?? 0)) };
    });
  }

  restored() {
    this.etag = null;
    this.made.clear();
    this.selection.undo();
    if (!this.booking.isOpen) return;
    this.booking.drop();
    notices.report("change", "The fleet went back to an older state. Your booking was not sent.");
  }

  // ---- what a person does

  book(range) {
    this.booking.open(this.grid.nodes, range);
  }

  backToGrid() {
    this.selection.undo();
    this.grid.scroller.focus({ preventScroll: true });
  }

  connect() {
    const clicks = {
      previous: () => this.turn(-1),
      next: () => this.turn(1),
      today: () => this.today(),
      reserve: () => this.book({}),
      help: () => byId("help-text").showModal(),
      "help-close": () => byId("help-text").close(),
    };
    for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
    for (const button of document.querySelectorAll("[data-view]")) {
      button.addEventListener("click", () => this.go(button.dataset.view, this.begin));
    }
    document.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target.closest("dialog, input, select, textarea")) return;
    const acts = {
      Escape: () => this.selection.undo(),
      t: () => this.today(),
      r: () => this.book({}),
      "?": () => byId("help-text").showModal(),
    };
    if (event.key in KEYS) this.go(KEYS[event.key], this.begin);
    else if (event.key in acts) acts[event.key]();
    else if (event.key.startsWith("Arrow") && event.target === document.body) byId("scroller").focus();
    else return;
    event.preventDefault();
  }
}

new Calendar();
