// Makes the bars of the calendar from the calendar's JSON: who has which GPUs of a node, and when.
//
// Pure functions over plain objects; `grid.js` draws the bars, `selection.js` asks about conflicts.

import { CELL, MINUTE, instant, moment, span } from "./times.js";

const COLOURS = 12;

/**
 * Groups the GPUs by node and makes the bars of each.
 *
 * A reservation of neighbouring GPUs is one bar over several rows. One with gaps has a bar for each run of rows; all
 * of them share `gpus`, the names of all its GPUs, and `rows`, their rows.
 */
export function nodesOf(items, mine) {
  const nodes = new Map();
  for (const item of items) {
    if (!nodes.has(item.node)) nodes.set(item.node, { name: item.node, gpus: [], bars: [] });
    const gpu = { ...item, name: `${item.node}:${item.index}` };
    gpu.taken = item.taken.map((one) => ({
      ...one,
      from: instant(one.from),
      until: instant(one.until),
      idleSince: instant(one.idle_since),
      idleRelease: instant(one.idle_release_at),
    }));
    nodes.get(item.node).gpus.push(gpu);
  }
  for (const node of nodes.values()) node.bars = barsOf(node, mine);
  return [...nodes.values()];
}

function barsOf(node, mine) {
  const holders = new Map();
  node.gpus.forEach((gpu, row) => {
    for (const one of gpu.taken) {
      const key = `${one.by} ${one.id} ${one.from} ${one.until}`;
      if (!holders.has(key)) holders.set(key, { ...one, rows: [] });
      holders.get(key).rows.push(row);
    }
  });
  const bars = [];
  for (const holder of holders.values()) {
    const gpus = holder.rows.map((row) => node.gpus[row]);
    for (const run of runs(holder.rows)) {
      bars.push({
        ...holder,
        key: `${holder.by} ${holder.id} ${run.row}`,
        node: node.name,
        row: run.row,
        count: run.count,
        gpus: gpus.map((gpu) => gpu.name),
        uuids: gpus.map((gpu) => gpu.uuid),
        mine: holder.owner === mine,
        room: roomAfter(node.gpus[run.row], holder),
      });
    }
  }
  return bars;
}

/** Neighbouring rows as runs. */
function runs(rows) {
  const found = [];
  for (const row of rows) {
    const last = found.at(-1);
    if (last && last.row + last.count === row) last.count += 1;
    else found.push({ row, count: 1 });
  }
  return found;
}

/** When the next holder of the GPU begins: a name may be written up to there. Null if nobody comes after. */
function roomAfter(gpu, holder) {
  const after = gpu.taken.filter((one) => one.id !== holder.id && one.from !== null && one.from > (holder.from ?? 0));
  return after.length > 0 ? Math.min(...after.map((one) => one.from)) : null;
}

/** From when to when a bar is drawn. A begin or an end that nobody knows is drawn around now. */
export function drawn(bar, now) {
  const from = bar.from ?? now - 5 * MINUTE;
  return { from, until: bar.until ?? Math.max(from, now) + 2 * CELL };
}

/** The first holder of one of the GPUs within a time; null if all are free then. */
export function conflict(gpus, from, until, now, except = null) {
  let first = null;
  for (const gpu of gpus) {
    for (const one of gpu.taken) {
      if (one.id === except) continue;
      // A holder whose end is not known has the GPU now; nobody knows for how long.
      const begins = one.from ?? now;
      const ends = one.until ?? Math.max(begins, now) + 1;
      if (begins >= until || ends <= from) continue;
      if (!first || begins < first.begins) first = { gpu, begins, id: one.id, owner: one.owner, until: one.until };
    }
  }
  return first;
}

/** titan01:0,1,2 as people write it: titan01:0-2. */
export function gpuList(names) {
  const nodes = new Map();
  for (const name of names) {
    const at = name.lastIndexOf(":");
    const node = name.slice(0, at);
    nodes.set(node, [...(nodes.get(node) ?? []), Number(name.slice(at + 1))]);
  }
  const lists = [...nodes].map(([node, numbers]) => {
    const parts = runs(numbers).map(({ row, count }) => (count > 1 ? `${row}-${row + count - 1}` : `${row}`));
    return `${node}:${parts.join(",")}`;
  });
  return lists.join(" ");
}

/** What a screen reader says of a bar. */
export function label(bar) {
  const parts = [gpuList(bar.gpus), bar.owner || "unknown owner", span(bar.from, bar.until)];
  if (bar.by === "job") parts.push("job");
  if (bar.mine) parts.push("mine");
  if (bar.idleSince !== null) parts.push(idle(bar));
  if (bar.note) parts.push(bar.note);
  return parts.join(", ");
}

/** Since when a reservation is idle, and what happens when. */
export function idle(bar) {
  const since = `idle since ${moment(bar.idleSince)}`;
  return bar.idleRelease === null ? since : `${since}, released at ${moment(bar.idleRelease)} if it stays idle`;
}

/** The colour of a person, from 0 to 11, the same on each page and machine. */
export function colour(user) {
  let hash = 2166136261;
  for (const byte of new TextEncoder().encode(user)) {
    hash = Math.imul(hash ^ byte, 16777619) >>> 0;
  }
  return hash % COLOURS;
}
