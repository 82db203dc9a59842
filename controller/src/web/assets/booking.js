// Runs the dialog that makes a reservation: which GPUs, from when, until when, note, and who else may use them.
//
// `calendar.js` owns the only booking. The dialog's fields are in `calendar.html`. While a person changes them, a dry
// run says whether the booking would work.

import { changeOnce, isUncertain, mark } from "./api.js";
import { Check, refused } from "./check.js";
import { CELL, HOUR, fieldOf, instantOf, length, now, span, zone } from "./times.js";

const field = (name) => document.getElementById(`book-${name}`);

export class Booking {
  /** `booked` is called with the server's reservation, `closed` after the dialog is gone. */
  constructor({ booked, closed }) {
    this.dialog = document.getElementById("book");
    this.booked = booked;
    this.known = {};
    this.sent = { text: "", mark: null };
    this.check = new Check((found) => this.found(found));
    this.dialog.addEventListener("close", () => {
      this.check.stop();
      closed();
    });
    field("cancel").addEventListener("click", () => this.dialog.close());
    field("form").addEventListener("input", (event) => this.changed(event.target));
    field("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    field("next").addEventListener("click", () => this.takeNext());
    for (const button of this.dialog.querySelectorAll("[data-hours]")) {
      button.addEventListener("click", () => this.lasts(Number(button.dataset.hours)));
    }
  }

  get isOpen() {
    return this.dialog.open;
  }

  /** Opens the dialog for GPUs of a node, or for any GPUs if `uuids` is empty. `from` null is now. */
  open(nodes, { node = "", uuids = [], from = null, until = null }) {
    this.nodes = nodes;
    this.fill(field("node"), nodes.map((one) => one.name), node);
    const models = [...new Set(nodes.flatMap((one) => one.gpus.map((gpu) => gpu.model)))].filter(Boolean).sort();
    this.fill(field("model"), ["", ...models], models.length === 1 ? models[0] : "");
    field("count").max = Math.max(1, ...nodes.map((one) => one.gpus.length));
    field(uuids.length > 0 ? "named" : "any").checked = true;
    this.drawGpus(uuids);
    field("now").checked = from === null;
    const begin = from ?? now();
    this.setTimes(begin, until ?? Math.ceil((begin + 2 * HOUR) / CELL) * CELL);
    field("note").value = "";
    field("with").value = "";
    field("wait").value = "0";
    field("ask").value = "";
    this.asks(false);
    field("zone").textContent = `Times are in ${zone(begin)}.`;
    this.sent = { text: "", mark: null };
    this.say({ ok: null, text: "" });
    this.dialog.showModal();
    field(uuids.length > 0 ? "until" : "count").focus();
    this.changed(null);
  }

  /** Closes the dialog without sending anything. */
  drop() {
    this.dialog.close();
  }

  fill(select, values, chosen) {
    const options = values.map((value) => new Option(value || "any", value, false, value === chosen));
    select.replaceChildren(...options);
  }

  drawGpus(chosen) {
    const node = this.nodes.find((one) => one.name === field("node").value);
    const boxes = (node?.gpus ?? []).map((gpu) => {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.value = gpu.uuid;
      box.checked = chosen.includes(gpu.uuid);
      label.append(box, ` ${gpu.index} ${gpu.model ?? ""}`);
      return label;
    });
    field("gpus").replaceChildren(...boxes);
  }

  setTimes(from, until) {
    this.known = { from, until };
    field("from").value = fieldOf(from);
    field("until").value = fieldOf(until);
  }

  /** A field was changed: draws what depends on it, and asks whether the booking would work. */
  changed(target) {
    if (target === field("node")) this.drawGpus([]);
    if (target === field("node") || field("gpus").contains(target)) field("named").checked = true;
    if (target === field("count") || target === field("model")) field("any").checked = true;
    field("from").disabled = field("now").checked;
    if (["note", "with", "ask"].some((name) => target === field(name))) return;
    const { from, until } = this.times();
    const begin = from ?? now();
    field("length").textContent = until > begin ? `${span(begin, until)}: ${length(until - begin)}` : "";
    const missing = this.missing();
    field("next").hidden = true;
    if (missing) {
      this.check.stop();
      this.say({ ok: false, text: missing });
    } else {
      this.say({ ok: null, text: "Checking …" });
      // Whether it works now: nobody knows what comes free or is approved.
      this.check.ask({ ...this.body(), wait_minutes: 0, ask: "" });
    }
  }

  times() {
    return {
      from: field("now").checked ? null : instantOf(field("from").value, this.known.from),
      until: instantOf(field("until").value, this.known.until),
    };
  }

  missing() {
    const { from, until } = this.times();
    if (field("named").checked && this.chosen().length === 0) return "Choose at least one GPU.";
    if (field("any").checked && !(Number(field("count").value) >= 1)) return "The number of GPUs is required.";
    if (!field("now").checked && from === null) return "From is required.";
    if (until === null) return "Until is required.";
    if (until <= (from ?? now())) return "Until must be later than From.";
    return "";
  }

  chosen() {
    return [...field("gpus").querySelectorAll("input:checked")].map((box) => box.value);
  }

  body() {
    const { from, until } = this.times();
    const which = field("named").checked
      ? { gpus: this.chosen() }
      : { count: Number(field("count").value), model: field("model").value };
    return {
      ...which,
      from: from === null ? null : new Date(from).toISOString(),
      until: new Date(until).toISOString(),
      note: field("note").value.trim(),
      project: "",
      with: field("with").value.split(/[\s,]+/).filter(Boolean),
      wait_minutes: Number(field("wait").value),
      ask: field("ask").hidden ? "" : field("ask").value.trim(),
    };
  }

  lasts(hours) {
    const begin = this.times().from ?? now();
    const until = begin + hours * HOUR;
    // An end on the half hour is easier to read and to book after.
    this.setTimes(begin, Math.ceil(until / CELL) * CELL);
    this.changed(null);
  }

  takeNext() {
    const { from, until } = this.times();
    const { next } = this;
    const lasts = until - (from ?? now());
    field("now").checked = next.from <= now();
    this.setTimes(next.from, next.from + lasts);
    if (field("named").checked) {
      field("node").value = next.node;
      this.drawGpus(next.uuids);
    }
    this.changed(null);
  }

  /** What a dry run says. */
  found({ ok, text, next = null, code = "" }) {
    if (ok !== null) this.asks(code === "above_limit");
    const waits = code === "gpus_held" && field("wait").value !== "0";
    this.say({ ok: waits ? null : ok, text: waits ? `${text} If you press Reserve, you get on the waiting list.` : text, next });
  }

  /** A limit refuses it, or not. */
  asks(does) {
    for (const element of this.dialog.querySelectorAll(".asks")) element.hidden = !does;
    field("send").textContent = does ? "Ask for approval" : "Reserve";
  }

  say({ ok, text, next = null }) {
    this.next = next;
    field("next").hidden = next === null;
    const verdict = field("verdict");
    verdict.textContent = text;
    verdict.className = { true: "good", false: "bad", null: "" }[ok];
  }

  async send() {
    // With a wait it may get on the waiting list without an approval.
    const unsaid = !field("ask").hidden && field("ask").value.trim() === "" && field("wait").value === "0";
    const missing = this.missing() || (unsaid ? "Say what you need it for." : "");
    if (missing) return this.say({ ok: false, text: missing });
    this.check.stop();
    const body = this.body();
    // The same booking that got no answer is sent with the same id, so that it is made only once.
    const text = JSON.stringify(body);
    if (this.sent.text !== text) this.sent = { text, mark: mark() };
    field("send").disabled = true;
    this.say({ ok: null, text: "Sending …" });
    try {
      const made = await changeOnce("/api/v1/reservations", { ...body, ...this.sent.mark, dry_run: false });
      this.dialog.close();
      this.booked(made);
    } catch (error) {
      this.failed(error);
    } finally {
      field("send").disabled = false;
    }
  }

  failed(error) {
    if (isUncertain(error)) {
      this.say({ ok: false, text: `${error.message} Press "${field("send").textContent}" to send the same booking again.` });
      return;
    }
    this.sent = { text: "", mark: null };
    if (error.code === "above_limit") this.asks(true);
    this.say({ ok: false, text: refused(error) });
    const begins = Date.parse(error.next?.starts_at ?? "");
    if (Number.isNaN(begins)) return;
    this.next = { from: begins, node: error.next.node, uuids: error.next.gpus };
    field("next").hidden = false;
  }
}
