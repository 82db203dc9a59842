// Draws what a GPU did in each minute of one day: how busy it was and how much of its memory was in use.
//
// Only the page of a GPU loads it. The controller asks the GPU's node each time, so the page is there before the answer
// is, and this asks for a day once.

import { read } from "./api.js";
import { MINUTE, clock, dayOf, dayText, daysAfter, dayWithYear, instant, length, now, parseDay } from "./times.js";

const SVG = "http://www.w3.org/2000/svg";
/** Height of the drawing in its own units; a minute is one unit wide. */
const HIGH = 100;
/** Labels below the drawing. */
const LABELS = 5;
const GIB = 2 ** 30;

const part = (name) => document.getElementById(`minutes-${name}`);
const root = document.getElementById("minutes");
const memory = Number(root.dataset.memoryBytes);
let day = dayOf(now());
let minutes = [];
/** Answers of days that were asked for before another one are dropped. */
let asked = 0;

/** One entry for each minute of the day that has begun: what is known of it. */
function minutesOf(answer, from, until) {
  const rows = new Map();
  for (const row of answer.items) {
    const at = instant(row.from);
    rows.set(at, [...(rows.get(at) ?? []), row]);
  }
  const known = instant(answer.known_from) ?? 0;
  const cut = instant(answer.cut_at) ?? Infinity;
  const all = [];
  for (let at = from; at < until && at < now(); at += MINUTE) {
    all.push(minuteOf(at, rows.get(at) ?? [], at >= known && at < cut));
  }
  return all;
}

function minuteOf(at, rows, isKnown) {
  const measured = rows.reduce((sum, row) => sum + row.measured_ms, 0);
  const weighted = rows.reduce((sum, row) => sum + row.measured_ms * (row.utilization_percent ?? 0), 0);
  return {
    at,
    rows,
    isUnknown: rows.length > 0 ? measured === 0 : !isKnown,
    use: measured > 0 ? weighted / measured : null,
    memory: measured > 0 ? Math.max(...rows.map((row) => row.memory_peak_bytes ?? 0)) : null,
  };
}

function shape(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** Begin and end, in minutes, of each run of minutes for which `test` holds. */
function runs(test) {
  const found = [];
  minutes.forEach((minute, number) => {
    if (!test(minute)) return;
    const last = found.at(-1);
    if (last?.[1] === number) last[1] = number + 1;
    else found.push([number, number + 1]);
  });
  return found;
}

/** A line over one run, at the heights that `height` gives for each minute. */
function steps([from, until], height) {
  const points = [];
  for (let number = from; number < until; number += 1) {
    const y = (HIGH - height(minutes[number])).toFixed(2);
    points.push(`${number},${y}`, `${number + 1},${y}`);
  }
  return points;
}

function draw(count) {
  const picture = shape("svg", {
    viewBox: `0 0 ${count} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": summary(),
  });
  for (const [from, until] of runs((minute) => minute.isUnknown)) {
    picture.append(shape("rect", { class: "unknown", x: from, y: 0, width: until - from, height: HIGH }));
  }
  const most = memory > 0 ? memory : Math.max(1, ...minutes.map((minute) => minute.memory ?? 0));
  for (const run of runs((minute) => minute.use !== null)) {
    const line = steps(run, (minute) => minute.use);
    const area = `${run[0]},${HIGH} ${line.join(" ")} ${run[1]},${HIGH}`;
    picture.append(shape("polygon", { class: "use", points: area }));
    const used = steps(run, (minute) => (HIGH * Math.min(minute.memory, most)) / most);
    picture.append(shape("polyline", { class: "memory", points: used.join(" ") }));
  }
  picture.append(shape("rect", { class: "here", x: 0, y: 0, width: 1, height: HIGH }));
  part("picture").replaceChildren(picture);
  const begin = day;
  part("hours").replaceChildren(...Array.from({ length: LABELS }, (_, number) => {
    const label = document.createElement("span");
    label.textContent = clock(begin + Math.round((number * count) / (LABELS - 1)) * MINUTE);
    return label;
  }));
}

/** The day in a sentence. */
function summary() {
  const held = minutes.filter((minute) => minute.rows.some((row) => row.holder !== null));
  const unknown = minutes.filter((minute) => minute.isUnknown).length;
  const busy = held.flatMap((minute) => minute.rows).reduce((sum, row) => sum + row.busy_ms, 0);
  return `Somebody had it for ${length(held.length * MINUTE)} and it was busy for ${length(busy)}. ` +
    `Unknown: ${length(unknown * MINUTE)}.`;
}

function inWords(minute) {
  const at = clock(minute.at);
  if (minute.rows.length === 0) return `${at}: ${minute.isUnknown ? "unknown" : "nobody had it"}.`;
  const texts = minute.rows.map((row) => {
    const who = row.holder === null ? "nobody had it" : `${row.holder}${row.owner === null ? "" : ` of ${row.owner}`}`;
    if (row.measured_ms === 0) return `${who}, unknown`;
    const names = row.processes.map((one) => `${one.user ?? one.uid} ${one.name ?? "?"}`);
    if (row.more_processes > 0) names.push(`${row.more_processes} more`);
    const gib = ((row.memory_peak_bytes ?? 0) / GIB).toFixed(1);
    const figures = [`${row.utilization_percent} %`, `${gib} GiB`];
    if (row.power_watts !== null) figures.push(`${row.power_watts} W`);
    if (row.temperature_peak_celsius !== null) figures.push(`${row.temperature_peak_celsius} °C`);
    return [who, ...figures, ...names].join(", ");
  });
  return `${at}: ${texts.join("; ")}.`;
}

/** Says in words what one minute was like. */
function point(number) {
  const at = Math.max(0, Math.min(number, minutes.length - 1));
  part("at").value = at;
  part("picture").querySelector(".here")?.setAttribute("x", at);
  part("words").textContent = minutes.length > 0 ? inWords(minutes[at]) : "";
}

async function load() {
  asked += 1;
  const question = asked;
  const [from, until] = [day, daysAfter(day, 1)];
  const count = (until - from) / MINUTE;
  part("day").value = dayText(day);
  part("day").max = dayText(now());
  part("next").disabled = day >= dayOf(now());
  part("notes").textContent = `Asking the node about ${dayWithYear(day)}…`;
  let notes = [];
  try {
    const path = `/api/v1/gpus/${encodeURIComponent(root.dataset.gpu)}/minutes/${from}/${until}`;
    const { body } = await read(path);
    if (question !== asked) return;
    minutes = minutesOf(body, from, until);
    notes = [summary(), ...body.notes];
  } catch (error) {
    if (question !== asked) return;
    minutes = [];
    notes = [error.message];
  }
  part("shown").hidden = minutes.length === 0;
  part("notes").textContent = notes.join(" ");
  if (minutes.length === 0) return;
  draw(count);
  part("at").max = count - 1;
  point(minutes.length - 1);
}

function show(other) {
  if (other === null || other > now()) return;
  day = other;
  load();
}

part("day").addEventListener("change", () => show(parseDay(part("day").value)));
part("before").addEventListener("click", () => show(daysAfter(day, -1)));
part("next").addEventListener("click", () => show(daysAfter(day, 1)));
part("load").addEventListener("click", load);
part("at").addEventListener("input", () => point(Number(part("at").value)));
part("picture").addEventListener("pointermove", (event) => {
  const box = part("picture").getBoundingClientRect();
  point(Math.floor(((event.clientX - box.left) / box.width) * (Number(part("at").max) + 1)));
});
load();
