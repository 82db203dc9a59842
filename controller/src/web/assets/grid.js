// Draws the calendar: a row for each GPU, time from left to right, and a bar for each holder.
//
// `calendar.js` owns the only grid. All positions are percents of real time, so days of 23 or 25 hours are as wide as
// they last, and a window that changes its size needs no drawing. A drawing changes the elements that exist, so that
// the scroll position and the focus stay.

import { colour, drawn, gpuList, label } from "./bars.js";
import {
  CELL, clock, dayName, dayOf, daysAfter, hourText, hours, isWeekend, moment, now, span, zone,
} from "./times.js";

/** States in which a GPU can be used. All others are drawn behind the bars of its row, with their reason. */
const USABLE = ["free", "reserved", "running", "releasing"];
/** A bar that is narrower than this many pixels has no note. */
const NOTE_WIDTH = 90;
/** How many hours are between two ticks, for each number of days. */
const TICKS = { 1: 1, 7: 6, 14: 12 };

export class Grid {
  /** `scroller` is the element that scrolls; it is empty. */
  constructor(scroller) {
    this.scroller = scroller;
    this.sheet = made("div", "sheet");
    this.head = made("div", "head");
    this.corner = made("div", "corner");
    this.scale = made("div", "scale");
    this.head.append(this.corner, this.scale);
    this.lines = made("div", "lines");
    this.over = made("div", "over");
    this.nowLine = made("div", "now-line");
    this.past = made("div", "past");
    this.over.append(this.nowLine);
    this.sheet.append(this.head, this.lines, this.over);
    scroller.append(this.sheet);
    this.nodes = [];
    this.sections = new Map();
    this.bars = new Map();
    this.days = 0;
    // How much room a name has is counted in pixels.
    new ResizeObserver(() => {
      if (this.scale.clientWidth !== this.width) this.draw(this.nodes);
    }).observe(this.scale);
  }

  /** Shows this many days from the begin of a day on. */
  setView(from, days) {
    const today = dayOf(now());
    if (from === this.from && days === this.days && today === this.today) return;
    Object.assign(this, { from, days, today, until: daysAfter(from, days) });
    this.cells = Math.round((this.until - from) / CELL);
    this.sheet.style.setProperty("--cells", this.cells);
    this.sheet.dataset.days = days;
    this.corner.textContent = "";
    this.corner.append(made("span", "zone", zone(from)));
    this.scale.replaceChildren();
    this.lines.replaceChildren(this.past);
    for (let count = 0; count < days; count += 1) this.drawDay(daysAfter(from, count));
  }

  drawDay(day) {
    const end = daysAfter(day, 1);
    const name = made("div", "day");
    if (day === this.today) name.classList.add("today");
    name.append(made("span", "", dayName(day)));
    this.place(name, day, end);
    this.scale.append(name);
    const band = made("div", isWeekend(day) ? "day-line weekend" : "day-line");
    this.place(band, day, end);
    this.lines.append(band);
    const every = TICKS[this.days] ?? 6;
    for (const ms of hours(day, every)) {
      const line = made("div", "hour-line");
      this.place(line, ms);
      this.lines.append(line);
      // At midnight of a view of several days the day's name says enough.
      if (this.days > 1 && ms === day) continue;
      const tick = made("div", "tick", hourText(ms));
      tick.title = `${moment(ms)} (${zone(ms)})`;
      this.place(tick, ms);
      this.scale.append(tick);
    }
  }

  /** Draws these nodes, and moves what stands for now. */
  draw(nodes) {
    this.nodes = nodes;
    this.width = this.scale.clientWidth;
    const longest = Math.max(0, ...nodes.map((node) => node.name.length));
    this.sheet.style.setProperty("--name-length", Math.min(longest, 16));
    const kept = new Map();
    for (const node of nodes) {
      const section = this.sections.get(node.name) ?? newSection(node.name);
      this.sections.delete(node.name);
      kept.set(node.name, section);
    }
    for (const gone of this.sections.values()) gone.element.remove();
    this.sections = kept;
    let before = this.over;
    for (const section of kept.values()) {
      if (before.nextElementSibling !== section.element) before.after(section.element);
      before = section.element;
    }
    const bars = new Map();
    for (const node of nodes) this.drawNode(node, bars);
    for (const [key, bar] of this.bars) if (bars.get(key) !== bar) bar.remove();
    this.bars = bars;
    this.drawNow();
  }

  drawNode(node, bars) {
    const { element, labels, track } = this.sections.get(node.name);
    const rows = node.gpus.map((gpu) => `${gpu.index} ${gpu.model} ${gpu.state} ${gpu.reason}`).join("\n");
    if (element.dataset.rows !== rows) {
      element.dataset.rows = rows;
      element.style.setProperty("--rows", node.gpus.length);
      labels.replaceChildren(...node.gpus.map(gpuLabel));
      for (const old of track.querySelectorAll(".row-state")) old.remove();
      node.gpus.forEach((gpu, row) => {
        if (USABLE.includes(gpu.state)) return;
        const state = rowState(gpu);
        this.placeRows(state, node.gpus.length, row);
        track.prepend(state);
      });
    }
    const time = now();
    for (const bar of node.bars) {
      const { from, until } = drawn(bar, time);
      if (from >= this.until || until <= this.from) continue;
      const key = `${node.name} ${bar.key}`;
      let drawnBar = this.bars.get(key);
      if (!drawnBar) {
        drawnBar = newBar();
        track.append(drawnBar);
      }
      this.fill(drawnBar, bar, from, until, node.gpus.length);
      bars.set(key, drawnBar);
    }
  }

  fill(element, bar, from, until, rows) {
    element.bar = bar;
    const left = Math.max(from, this.from);
    const right = Math.min(until, this.until);
    const pixels = (ms) => Math.round((this.width * (ms - left)) / (this.until - this.from));
    const style = element.style;
    style.setProperty("left", `${this.percent(left)}%`);
    style.setProperty("width", `${this.percent(right) - this.percent(left)}%`);
    this.placeRows(element, rows, bar.row, bar.count);
    const text = label(bar);
    // The rest depends only on the bar and on where the view cuts it.
    const look = [text, left, right, pixels(right), bar.room, bar.by, bar.mine, bar.owner].join("\n");
    if (element.look === look) return;
    element.look = look;
    element.className = `bar ${bar.by} colour-${colour(bar.owner)}`;
    element.classList.toggle("mine", bar.mine);
    element.classList.toggle("idle", bar.idleSince !== null);
    element.classList.toggle("cut-left", from < this.from || bar.from === null);
    element.classList.toggle("open-begin", bar.from === null);
    element.classList.toggle("cut-right", until > this.until);
    element.classList.toggle("open-end", bar.until === null);
    element.classList.toggle("movable", isMovable(bar) && until <= this.until);
    element.dataset.id = bar.id;
    element.setAttribute("aria-label", text);
    element.title = text;
    const [owner, note] = element.firstElementChild.children;
    owner.textContent = bar.owner || "?";
    note.textContent = [bar.by === "job" ? "job" : "", bar.idleSince === null ? "" : "idle", bar.note ?? ""].filter(Boolean).join(" ");
    // A name may be longer than its bar, up to the next bar.
    owner.style.setProperty("max-width", `${pixels(Math.min(bar.room ?? this.until, this.until))}px`);
    note.hidden = note.textContent === "" || pixels(right) < NOTE_WIDTH;
  }

  /** Moves the line for now and the grey of the past. */
  drawNow() {
    const at = now();
    const inside = at >= this.from && at < this.until;
    this.nowLine.hidden = !inside;
    if (inside) this.place(this.nowLine, at);
    this.nowLine.title = moment(at);
    this.nowLine.dataset.time = clock(at);
    // A GPU's state is that of now; nothing is known of its state before.
    this.sheet.style.setProperty("--now-at", `${Math.min(Math.max(this.percent(at), 0), 100)}%`);
    this.past.hidden = at <= this.from;
    if (at > this.from) this.place(this.past, this.from, Math.min(at, this.until));
  }

  /** Where an instant is, in percents of the view's width. */
  percent(ms) {
    return (100 * (ms - this.from)) / (this.until - this.from);
  }

  place(element, from, until = null) {
    element.style.setProperty("left", `${this.percent(from)}%`);
    if (until !== null) element.style.setProperty("width", `${this.percent(until) - this.percent(from)}%`);
  }

  placeRows(element, rows, row, count = 1) {
    element.style.setProperty("top", `${(100 * row) / rows}%`);
    element.style.setProperty("height", `${(100 * count) / rows}%`);
  }

  /** Begin of a cell. */
  cellStart(cell) {
    return this.from + cell * CELL;
  }

  /** The cell that has an instant. It may be outside of the view. */
  cellOf(ms) {
    return Math.floor((ms - this.from) / CELL);
  }

  node(name) {
    return this.nodes.find((node) => node.name === name);
  }

  track(name) {
    return this.sections.get(name)?.track;
  }

  /** Node, row and cell below a point of the window, as near as the node's track has them. */
  spot(name, x, y) {
    const box = this.track(name).getBoundingClientRect();
    const rows = this.node(name).gpus.length;
    const cell = Math.floor(((x - box.left) / box.width) * this.cells);
    const row = Math.floor(((y - box.top) / box.height) * rows);
    return {
      node: name,
      row: Math.min(Math.max(row, 0), rows - 1),
      cell: Math.min(Math.max(cell, 0), this.cells - 1),
    };
  }

  /** Scrolls sideways so that an instant is near the left edge. */
  scrollTo(ms) {
    const part = Math.max(0, this.percent(ms)) / 100;
    const width = this.scale.getBoundingClientRect().width;
    this.scroller.scrollLeft = Math.max(0, part * width - 24);
  }
}

/** Whether the person may move the bar's end. */
export function isMovable(bar) {
  return bar.mine && bar.by === "reservation" && bar.until !== null;
}

/** A sentence for each row at a time, for the keyboard: who has the GPU, or that it is free. */
export function cellText(gpu, from, until, holder) {
  const state = USABLE.includes(gpu.state) ? "" : `, ${gpu.state}`;
  const taken = holder ? `${holder.owner}, ${span(holder.from, holder.until)}` : "free";
  return `${gpuList([gpu.name])}, ${moment(from)} to ${clock(until)}, ${taken}${state}`;
}

function newSection(name) {
  const element = made("section", "node");
  element.dataset.node = name;
  element.setAttribute("aria-label", name);
  const heading = made("h2", "node-name");
  const text = made("span", "", name);
  heading.title = name;
  heading.append(text);
  const labels = made("div", "labels");
  const track = made("div", "track");
  element.append(heading, labels, track);
  return { element, labels, track };
}

function newBar() {
  const bar = made("button", "bar");
  bar.type = "button";
  const name = made("span", "bar-name");
  name.append(made("b", ""), made("span", "bar-note"));
  bar.append(name, made("span", "handle"));
  return bar;
}

function gpuLabel(gpu) {
  const element = made("div", `label state-${gpu.state}`);
  element.append(made("span", "number", String(gpu.index)), made("span", "model", gpu.model ?? "unknown"));
  if (!USABLE.includes(gpu.state)) element.append(made("span", "state", gpu.state));
  element.title = [`${gpu.name}, ${gpu.model ?? "unknown model"}`, gpu.state, gpu.reason].filter(Boolean).join(", ");
  return element;
}

function rowState(gpu) {
  const element = made("div", `row-state state-${gpu.state}`);
  const text = [gpu.state, gpu.reason].filter(Boolean).join(": ");
  element.title = text;
  element.append(made("span", "", text));
  return element;
}

function made(name, className, text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
