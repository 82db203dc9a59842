// Selects GPUs and a time in the calendar, by mouse, touch or keyboard, and moves the end of a bar.
//
// `calendar.js` owns the only selection. What a person selects is a range: some rows of one node, and cells of half an
// hour. This module draws the range and the cursor, and says beside the pointer who is in the way.

import { conflict, gpuList } from "./bars.js";
import { Check, held } from "./check.js";
import { cellText, isMovable } from "./grid.js";
import { CELL, length, moment, now, span } from "./times.js";

/** A drag that is this near an edge, in pixels, scrolls the calendar. */
const EDGE = 28;

export class Selection {
  /**
   * `act` is what the calendar does: `book(range)`, `show(bar)`, `release(bar)`, `move(bar, until)`, `turn(step)`,
   * `say(text)` for a screen reader, `idle()` after each drag.
   */
  constructor(grid, tip, act) {
    Object.assign(this, { grid, tip, act });
    this.cursor = null;
    this.range = null;
    this.drag = null;
    this.verdict = null;
    this.cursorMark = document.createElement("div");
    this.cursorMark.className = "cursor";
    this.marks = [];
    this.check = new Check((found) => this.judged(found));
    const area = grid.scroller;
    area.addEventListener("pointerdown", (event) => this.down(event));
    area.addEventListener("pointermove", (event) => this.moved(event));
    area.addEventListener("pointerup", (event) => this.up(event));
    area.addEventListener("pointercancel", () => this.undo());
    area.addEventListener("click", (event) => this.clicked(event));
    area.addEventListener("keydown", (event) => this.key(event));
    area.addEventListener("focus", () => this.focused());
    area.addEventListener("blur", () => this.cursorMark.remove());
  }

  /** Whether a drag is in progress; the calendar draws nothing new meanwhile. */
  get busy() {
    return this.drag !== null;
  }

  // ---- by pointer

  down(event) {
    if (event.button !== 0) return;
    this.pointer = event.pointerType;
    const bar = event.target.closest(".bar");
    const track = event.target.closest(".track");
    if (!track || event.pointerType === "touch") return;
    const node = track.closest(".node").dataset.node;
    const spot = this.grid.spot(node, event.clientX, event.clientY);
    if (bar) {
      if (!event.target.closest(".handle") || !isMovable(bar.bar)) return;
      this.drag = { kind: "end", bar: bar.bar, node, spot };
    } else if (event.shiftKey && this.cursor?.node === node) {
      this.drag = { kind: "range", node, start: { ...this.cursor } };
    } else if ((event.ctrlKey || event.metaKey) && this.range?.node === node) {
      // Another row for the same time. Enter opens the dialog.
      event.preventDefault();
      this.toggle(spot.row);
      return this.aside(event.clientX, event.clientY);
    } else {
      this.undo();
      this.drag = { kind: "range", node, start: spot, keep: event.ctrlKey || event.metaKey };
    }
    event.preventDefault();
    this.grid.scroller.focus({ preventScroll: true });
    this.grid.scroller.setPointerCapture(event.pointerId);
    this.dragTo(event);
  }

  moved(event) {
    if (!this.drag) return;
    this.scrollAtEdge(event);
    this.dragTo(event);
  }

  dragTo(event) {
    const { drag } = this;
    const spot = this.grid.spot(drag.node, event.clientX, event.clientY);
    this.at = [event.clientX, event.clientY];
    if (drag.kind === "end") {
      const first = this.grid.cellOf(drag.bar.from);
      // The end is behind the cell below the pointer, and never before the next half hour from now.
      const last = Math.max(spot.cell, first, this.grid.cellOf(now()));
      if (drag.last === undefined && spot.cell === drag.spot.cell) return;
      drag.last = last;
      this.select({ node: drag.node, rows: drag.bar.rows, first, last }, drag.bar.id);
    } else {
      this.cursor = spot;
      this.select(this.between(drag.start, spot));
    }
  }

  up() {
    const { drag } = this;
    if (!drag) return;
    this.drag = null;
    this.act.idle();
    if (drag.kind === "end") {
      this.undo();
      if (drag.last === undefined) return this.act.show(drag.bar);
      const until = this.grid.cellStart(drag.last + 1);
      if (until !== drag.bar.until) this.act.move(drag.bar, until);
    } else if (!drag.keep) {
      this.book();
    }
  }

  clicked(event) {
    const bar = event.target.closest(".bar");
    if (bar) return this.act.show(bar.bar);
    const track = event.target.closest(".track");
    // Mouse and pen were handled when the button went up.
    if (!track || this.pointer !== "touch") return;
    const spot = this.grid.spot(track.closest(".node").dataset.node, event.clientX, event.clientY);
    this.undo();
    this.cursor = spot;
    this.at = [event.clientX, event.clientY];
    this.select(this.between(spot, spot));
    this.book();
  }

  scrollAtEdge(event) {
    const area = this.grid.scroller;
    const box = area.getBoundingClientRect();
    const left = this.grid.scale.getBoundingClientRect().left;
    const start = Math.max(box.left, left);
    if (event.clientX > box.right - EDGE) area.scrollLeft += EDGE / 2;
    else if (event.clientX < start + EDGE && event.clientX > box.left) area.scrollLeft -= EDGE / 2;
    if (event.clientY > box.bottom - EDGE) area.scrollTop += EDGE / 2;
    else if (event.clientY < box.top + EDGE * 2) area.scrollTop -= EDGE / 2;
  }

  // ---- by keyboard

  key(event) {
    const bar = event.target.closest(".bar")?.bar ?? this.barAtCursor(event.target);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.altKey || event.metaKey) return;
    if (step) {
      if (event.target.closest(".bar")) this.toCursor(bar);
      this.step(step, event.shiftKey, event.ctrlKey);
    } else if (event.key === "Home" || event.key === "End") {
      this.step([0, (event.key === "Home" ? -1 : 1) * this.grid.cells], event.shiftKey, false);
    } else if (event.key === "Enter" && event.target === this.grid.scroller) {
      if (bar && !this.isWide()) this.act.show(bar);
      else this.book();
    } else if (event.key === "Delete" && bar) {
      this.act.release(bar);
    } else {
      return;
    }
    event.preventDefault();
  }

  step([rows, cells], wide, day) {
    if (!this.cursor) this.cursor = this.firstCursor();
    if (!this.cursor) return;
    if (!wide) this.undo();
    const before = { ...this.cursor };
    this.cursor.cell += day ? cells * 48 : cells;
    if (!wide) this.turnPage();
    this.cursor.cell = Math.min(Math.max(this.cursor.cell, 0), this.grid.cells - 1);
    this.cursor.row += rows;
    this.overNodes(wide);
    if (wide) {
      this.anchor ??= before;
      this.at = null;
      this.select(this.between(this.anchor, this.cursor));
    } else {
      this.anchor = null;
    }
    this.drawCursor();
    this.sayCursor();
  }

  /** A step over the left or right edge turns the page. */
  turnPage() {
    const { cursor, grid } = this;
    if (cursor.cell >= 0 && cursor.cell < grid.cells) return;
    if (Math.abs(cursor.cell) > grid.cells + 48) return;
    const ms = grid.cellStart(cursor.cell);
    this.act.turn(cursor.cell < 0 ? -1 : 1);
    cursor.cell = grid.cellOf(ms);
  }

  /** A step over the first or last row of a node leads to the next node; a range stays within one. */
  overNodes(wide) {
    const { cursor, grid } = this;
    const at = grid.nodes.findIndex((node) => node.name === cursor.node);
    const rows = grid.nodes[at].gpus.length;
    const beside = grid.nodes[cursor.row < 0 ? at - 1 : at + 1];
    if (cursor.row >= 0 && cursor.row < rows) return;
    if (wide || !beside) {
      cursor.row = Math.min(Math.max(cursor.row, 0), rows - 1);
    } else {
      cursor.row = cursor.row < 0 ? beside.gpus.length - 1 : 0;
      cursor.node = beside.name;
    }
  }

  focused() {
    // A click sets the cursor itself; the keyboard needs to see where it is.
    if (this.drag || !this.grid.scroller.matches(":focus-visible")) return;
    this.cursor ??= this.firstCursor();
    this.drawCursor();
  }

  firstCursor() {
    const node = this.grid.nodes[0];
    if (!node) return null;
    const cell = this.grid.cellOf(now());
    return { node: node.name, row: 0, cell: cell >= 0 && cell < this.grid.cells ? cell : 0 };
  }

  toCursor(bar) {
    this.cursor = { node: bar.node, row: bar.row, cell: this.grid.cellOf(Math.max(bar.from ?? now(), this.grid.from)) };
    this.grid.scroller.focus({ preventScroll: true });
  }

  barAtCursor(target) {
    const { cursor, grid } = this;
    if (!cursor || target !== grid.scroller) return null;
    const [from, until] = [grid.cellStart(cursor.cell), grid.cellStart(cursor.cell + 1)];
    const gpu = grid.node(cursor.node)?.gpus[cursor.row];
    const found = gpu && conflict([gpu], from, until, now());
    return found && grid.node(cursor.node).bars.find((bar) => bar.id === found.id && bar.uuids.includes(gpu.uuid));
  }

  drawCursor() {
    const { cursor, grid, cursorMark } = this;
    const node = cursor && grid.node(cursor.node);
    if (!node) return cursorMark.remove();
    grid.place(cursorMark, grid.cellStart(cursor.cell), grid.cellStart(cursor.cell + 1));
    grid.placeRows(cursorMark, node.gpus.length, cursor.row);
    const track = grid.track(cursor.node);
    if (cursorMark.parentElement !== track) track.append(cursorMark);
    cursorMark.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  sayCursor() {
    const { cursor, grid, range } = this;
    if (range && this.isWide()) return;
    const gpu = grid.node(cursor.node).gpus[cursor.row];
    const [from, until] = [grid.cellStart(cursor.cell), grid.cellStart(cursor.cell + 1)];
    const holder = gpu.taken.find((one) => (one.from ?? now()) < until && (one.until ?? now()) > from);
    this.act.say(until <= now() ? `${gpu.name}, ${moment(from)}, past` : cellText(gpu, from, until, holder));
  }

  // ---- the range

  between(one, other) {
    const [top, bottom] = [Math.min(one.row, other.row), Math.max(one.row, other.row)];
    const rows = Array.from({ length: bottom - top + 1 }, (_, at) => top + at);
    return { node: one.node, rows, first: Math.min(one.cell, other.cell), last: Math.max(one.cell, other.cell) };
  }

  toggle(row) {
    const { rows } = this.range;
    const left = rows.includes(row) ? rows.filter((one) => one !== row) : [...rows, row].sort((a, b) => a - b);
    if (left.length > 0) this.select({ ...this.range, rows: left });
  }

  isWide() {
    return this.range !== null && (this.range.rows.length > 1 || this.range.last > this.range.first);
  }

  /** Draws a range and asks whether it can be booked. `except` is the reservation whose end is being moved. */
  select(range, except = null) {
    const { grid } = this;
    const node = grid.node(range.node);
    const time = now();
    // The past cannot be booked. A range that begins with the present half hour begins now.
    const first = except ? range.first : Math.max(range.first, grid.cellOf(time));
    const asked = { ...range, first };
    const same = JSON.stringify(asked) === JSON.stringify(this.range);
    this.range = asked;
    if (same) return this.drawTip();
    this.check.stop();
    const gpus = range.rows.map((row) => node.gpus[row]);
    const [from, until] = [grid.cellStart(first), grid.cellStart(range.last + 1)];
    const names = gpuList(gpus.map((gpu) => gpu.name));
    this.title = `${names}, ${span(from, until)} (${length(until - Math.max(from, time))})`;
    if (first > range.last) {
      this.range = null;
      this.title = "";
      this.verdict = { ok: false, text: "This time is in the past." };
    } else if (except) {
      const taken = conflict(gpus, Math.min(from, until), until, time, except);
      this.title = `New end: ${moment(until)} (${length(until - from)})`;
      const text = taken ? held(taken.owner, [taken.gpu.name], taken.until) : "";
      this.verdict = { ok: !taken, text };
    } else {
      const taken = conflict(gpus, Math.max(from, time), until, time);
      const text = taken ? held(taken.owner, [taken.gpu.name], taken.until) : "";
      this.verdict = { ok: taken ? false : null, text };
      this.check.ask(this.booking());
    }
    this.drawRange(range, first);
    this.drawTip();
  }

  judged(found) {
    if (!this.range) return;
    this.verdict = found;
    this.drawRange(this.range, this.range.first);
    this.drawTip();
    if (!this.drag) this.act.say(`${this.title}. ${found.text}`);
  }

  drawRange(range, first) {
    for (const mark of this.marks) mark.remove();
    this.marks = [];
    if (first > range.last) return;
    const { grid } = this;
    const node = grid.node(range.node);
    for (const row of range.rows) {
      const mark = document.createElement("div");
      const word = { true: "free", false: "taken", null: "unsure" }[this.verdict?.ok ?? null];
      mark.className = `chosen ${word}`;
      grid.place(mark, grid.cellStart(first), grid.cellStart(range.last + 1));
      grid.placeRows(mark, node.gpus.length, row);
      grid.track(range.node).append(mark);
      this.marks.push(mark);
    }
  }

  aside(x, y) {
    this.at = [x, y];
    this.drawTip();
  }

  /** The words beside the pointer, or below the range if the keyboard made it. */
  drawTip() {
    const { tip } = this;
    tip.replaceChildren();
    for (const [name, text] of [["b", this.title], ["span", this.verdict?.text], ["small", this.hint()]]) {
      if (!text) continue;
      const line = document.createElement(name);
      line.textContent = text;
      tip.append(line);
    }
    tip.className = `tip ${{ true: "free", false: "taken", null: "" }[this.verdict?.ok ?? null]}`;
    tip.hidden = tip.childElementCount === 0;
    if (tip.hidden) return;
    const last = this.marks.at(-1)?.getBoundingClientRect();
    const [x, y] = this.at ?? [last?.right ?? 0, (last?.bottom ?? 0) - 12];
    const box = tip.getBoundingClientRect();
    const left = Math.min(x + 16, innerWidth - box.width - 8);
    const top = y + 20 + box.height > innerHeight ? y - box.height - 14 : y + 20;
    tip.style.setProperty("left", `${Math.max(8, left)}px`);
    tip.style.setProperty("top", `${Math.max(8, top)}px`);
  }

  hint() {
    if (!this.range || (this.drag && !this.drag.keep)) return "";
    return "Enter reserves, Esc undoes.";
  }

  /** What the server is asked to book. */
  booking() {
    const { grid, range } = this;
    const node = grid.node(range.node);
    const from = grid.cellStart(range.first);
    return {
      gpus: range.rows.map((row) => node.gpus[row].uuid),
      from: from <= now() ? null : new Date(from).toISOString(),
      until: new Date(grid.cellStart(range.last + 1)).toISOString(),
      note: "",
      project: "",
      with: [],
    };
  }

  /** Opens the dialog for the range, or for the cell below the cursor. */
  book() {
    if (!this.range && this.cursor && !this.drag) this.select(this.between(this.cursor, this.cursor));
    if (!this.range) {
      if (this.verdict?.text) this.act.say(this.verdict.text);
      return setTimeout(() => !this.range && !this.drag && this.undo(), 1500);
    }
    const { grid, range } = this;
    const node = grid.node(range.node);
    const gpus = range.rows.map((row) => node.gpus[row]);
    const from = grid.cellStart(range.first);
    let until = grid.cellStart(range.last + 1);
    // One cell is a click. An hour is offered if it is free.
    const longer = until + CELL;
    if (!this.isWide() && !conflict(gpus, Math.max(from, now()), longer, now())) until = longer;
    this.check.stop();
    this.tip.hidden = true;
    this.act.book({ node: range.node, uuids: gpus.map((gpu) => gpu.uuid), from: from <= now() ? null : from, until });
  }

  /** Forgets the range and a drag. */
  undo() {
    this.check.stop();
    const dragged = this.drag;
    this.drag = null;
    this.range = null;
    this.anchor = null;
    this.verdict = null;
    this.title = "";
    for (const mark of this.marks) mark.remove();
    this.marks = [];
    this.tip.hidden = true;
    if (dragged) this.act.idle();
  }

  /** After a drawing: the rows may be others. A range whose node is gone is forgotten. */
  redrawn() {
    if (this.cursor && !this.grid.node(this.cursor.node)?.gpus[this.cursor.row]) this.cursor = null;
    const node = this.range && this.grid.node(this.range.node);
    if (this.range && !this.range.rows.every((row) => node?.gpus[row])) this.undo();
  }
}
