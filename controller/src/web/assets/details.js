// Runs the dialog with all that is known of a bar, and changes what a person may change there: the end, or all of it.
//
// `calendar.js` owns the only details. The dialog's fields are in `calendar.html`.

import { changeOnce, mark } from "./api.js";
import { gpuList, idle } from "./bars.js";
import { refused } from "./check.js";
import { isMovable } from "./grid.js";
import { ask, askRelease } from "./question.js";
import { fieldOf, instantOf, length, moment, now, span, zone } from "./times.js";

const part = (name) => document.getElementById(`details-${name}`);

export class Details {
  /** `changed` is called with the server's reservation after each change, `failed` with a sentence. */
  constructor({ admin, changed, failed }) {
    Object.assign(this, { admin, changed, failed });
    this.dialog = document.getElementById("details");
    part("close").addEventListener("click", () => this.dialog.close());
    part("release").addEventListener("click", () => this.release(this.bar));
    part("form").addEventListener("submit", (event) => {
      event.preventDefault();
      const until = instantOf(part("until").value, this.bar.until);
      if (until !== null) this.move(this.bar, until);
    });
  }

  open(bar) {
    this.bar = bar;
    part("title").textContent = gpuList(bar.gpus);
    const begin = bar.from ?? now();
    const facts = [
      ["Owner", bar.mine ? `${bar.owner} (you)` : bar.owner || "not known"],
      ["Time", span(bar.from, bar.until)],
      ["Length", bar.from === null || bar.until === null ? "" : length(bar.until - begin)],
      ["Zone", zone(begin)],
      ["Use", bar.idleSince === null ? "" : idle(bar)],
      ["Note", bar.note],
      [bar.by === "job" ? "Job" : "Reservation", bar.id],
    ];
    const lines = facts.filter(([, value]) => value).flatMap(([name, value]) => {
      const term = document.createElement("dt");
      term.textContent = name;
      const text = document.createElement("dd");
      text.textContent = value;
      return [term, text];
    });
    part("facts").replaceChildren(...lines);
    part("more").textContent = bar.by === "job"
      ? "This job runs outside of any reservation. It may end earlier."
      : "";
    part("form").hidden = !isMovable(bar);
    if (isMovable(bar)) part("until").value = fieldOf(bar.until);
    part("release").hidden = !this.mayRelease(bar);
    this.dialog.showModal();
    part("close").focus();
  }

  mayRelease(bar) {
    return bar.by === "reservation" && bar.id !== "" && (bar.mine || this.admin);
  }

  /** Asks, then releases a reservation. */
  async release(bar) {
    if (!this.mayRelease(bar)) return;
    const begun = bar.from === null || bar.from <= now();
    const agreed = await askRelease({ ...bar, gpus: gpuList(bar.gpus), begun });
    if (agreed) await this.change(bar, "release", {}, "was not released");
  }

  /** Asks, then gives a reservation another end. */
  async move(bar, until) {
    const way = until > bar.until ? "later" : "earlier";
    const agreed = await ask({
      title: `Move the end of ${gpuList(bar.gpus)}?`,
      text: `${bar.id} then ends ${moment(until)} instead of ${moment(bar.until)}: `
        + `${length(Math.abs(until - bar.until))} ${way}.`,
      yes: "Move the end",
    });
    if (agreed) await this.change(bar, "extend", { until: new Date(until).toISOString() }, "keeps its end");
  }

  async change(bar, what, body, otherwise) {
    const path = `/api/v1/reservations/${encodeURIComponent(bar.id)}/${what}`;
    try {
      const made = await changeOnce(path, { ...mark(), ...body });
      this.dialog.close();
      this.changed(made);
    } catch (error) {
      this.dialog.close();
      this.failed(`${bar.id} ${otherwise}: ${refused(error)}`);
    }
  }
}
