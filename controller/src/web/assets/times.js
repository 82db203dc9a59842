// Converts between instants and the wall clock of the viewer's zone, and keeps the fleet's time.
//
// All other modules of the page call this one. An instant is a number: milliseconds since 1970. This module never
// asks the browser's clock what time it is, because that clock may be wrong by a day.

export const MINUTE = 60_000;
export const HOUR = 60 * MINUTE;
/** The calendar's smallest step. */
export const CELL = 30 * MINUTE;

const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

// The fleet's time is the last one that a controller sent, plus what this page's stopwatch counted since.
let sent = Number(document.body.dataset.nowMs);
let counted = performance.now();

/** Takes over the fleet's time from an answer. */
export function setNow(ms) {
  if (Number.isFinite(ms) && ms > 0) {
    sent = ms;
    counted = performance.now();
  }
}

/** The fleet's time. */
export function now() {
  return sent + (performance.now() - counted);
}

/** The instant of an RFC 3339 text; null stays null. */
export function instant(text) {
  if (text === null || text === undefined) return null;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms;
}

/** Begin of the day, on the viewer's wall clock, that has this instant. */
export function dayOf(ms) {
  const date = new Date(ms);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
}

/** Begin of the day that is this many days after another one. Days have 23, 24 or 25 hours. */
export function daysAfter(day, count) {
  const date = new Date(day);
  return new Date(date.getFullYear(), date.getMonth(), date.getDate() + count).getTime();
}

/** The day as the URL has it, 2026-11-30. */
export function dayText(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** The begin of a day that is written 2026-11-30; null if it is not a day. */
export function parseDay(text) {
  const found = /^(\d{4})-(\d{2})-(\d{2})$/.exec(text ?? "");
  if (!found) return null;
  const day = new Date(Number(found[1]), Number(found[2]) - 1, Number(found[3]));
  return dayText(day.getTime()) === text ? day.getTime() : null;
}

/** Thu 3 Dec */
export function dayName(ms) {
  const date = new Date(ms);
  return `${DAYS[date.getDay()]} ${date.getDate()} ${MONTHS[date.getMonth()]}`;
}

/** Thu 3 Dec 2026 */
export function dayWithYear(ms) {
  return `${dayName(ms)} ${new Date(ms).getFullYear()}`;
}

export function isWeekend(ms) {
  return [0, 6].includes(new Date(ms).getDay());
}

/** 18:30. On a day with 23 or 25 hours the zone's name follows, because some times exist twice. */
export function clock(ms) {
  const date = new Date(ms);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return isChanging(ms) ? `${text} ${zoneAt(ms)}` : text;
}

/** Thu 3 Dec 18:30 */
export function moment(ms) {
  return `${dayName(ms)} ${clock(ms)}`;
}

/** Thu 3 Dec 11:00 to 18:30; a begin or an end that nobody knows is left out or named. */
export function span(from, until) {
  if (from === null && until === null) return "now, end not known";
  if (until === null) return `${moment(from)}, end not known`;
  if (from === null) return `until ${moment(until)}`;
  const end = dayOf(from) === dayOf(until) ? clock(until) : moment(until);
  return `${moment(from)} to ${end}`;
}

/** 5 h 30 min */
export function length(ms) {
  const minutes = Math.round(ms / MINUTE);
  const parts = [
    [Math.floor(minutes / 1440), "d"],
    [Math.floor((minutes % 1440) / 60), "h"],
    [minutes % 60, "min"],
  ];
  const text = parts.filter(([count]) => count > 0).map(([count, unit]) => `${count}\u00a0${unit}`);
  return text.join(" ") || "0 min";
}

/** Name of the viewer's zone and its distance from UTC at an instant: Europe/Berlin, UTC+01:00. */
export function zone(ms) {
  const minutes = -new Date(ms).getTimezoneOffset();
  const away = Math.abs(minutes);
  const sign = minutes < 0 ? "−" : "+";
  const offset = `UTC${sign}${two(Math.floor(away / 60))}:${two(away % 60)}`;
  return `${Intl.DateTimeFormat().resolvedOptions().timeZone}, ${offset}`;
}

/** The value of a datetime-local field for an instant. */
export function fieldOf(ms) {
  const date = new Date(ms);
  return `${dayText(ms)}T${two(date.getHours())}:${two(date.getMinutes())}`;
}

/**
 * The instant of a datetime-local field; null if the field is empty.
 *
 * A wall-clock time that exists twice means `known` if that instant reads the same, else the first one.
 */
export function instantOf(field, known = null) {
  if (!field) return null;
  if (known !== null && fieldOf(known) === field) return known;
  const ms = new Date(field).getTime();
  return Number.isNaN(ms) ? null : ms;
}

/** The instants of a day where the wall clock shows a full hour that is a multiple of `every`. */
export function hours(day, every) {
  const end = daysAfter(day, 1);
  const found = [];
  for (let ms = day; ms < end; ms += CELL) {
    const date = new Date(ms);
    if (date.getMinutes() === 0 && date.getHours() % every === 0) found.push(ms);
  }
  return found;
}

/** 07 */
export function hourText(ms) {
  return two(new Date(ms).getHours());
}

/** Shows each `<time datetime=…>` below an element in the viewer's zone. */
export function localize(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const ms = instant(element.dateTime);
    if (ms === null) continue;
    element.textContent = moment(ms);
    element.title = `${dayWithYear(ms)} ${clock(ms)} (${zone(ms)})`;
  }
}

function isChanging(ms) {
  const day = dayOf(ms);
  return daysAfter(day, 1) - day !== 24 * HOUR;
}

/** CET, EST: each kind of English knows only the names of its own part of the world. */
function zoneAt(ms) {
  const names = ["en-GB", "en-US", "en-AU"].map((english) => {
    const parts = new Intl.DateTimeFormat(english, { timeZoneName: "short" }).formatToParts(ms);
    return parts.find((part) => part.type === "timeZoneName")?.value ?? "";
  });
  return names.find((name) => !name.startsWith("GMT")) ?? names[0];
}

function two(number) {
  return String(number).padStart(2, "0");
}
