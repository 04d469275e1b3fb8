// Converts the status of the node to what the page shows. Pure: no DOM, no clock. Any part of the status may be missing.

const EVENTS_MAX = 100;
const natural = new Intl.Collator("en", { numeric: true });
export const byName = (a, b) => natural.compare(a, b);

const list = (value) => (Array.isArray(value) ? value.filter((row) => row && typeof row === "object") : []);
const part = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
export const texts = (value) => (Array.isArray(value) ? value.map(String) : []);
const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

export function readStatus(status) {
  const node = part(status.node);
  const members = readMembers(status, node);
  const subnets = readSubnets(list(status.paths), members);
  const groups = list(status.groups).map(readGroup);
  const model = {
    node,
    members,
    subnets,
    groups,
    links: list(status.links).sort((a, b) => byName(String(a.peer), String(b.peer))),
    incidents: list(status.incidents),
    events: readEvents(list(status.events), members),
    queues: part(status.queues),
    telemetry: part(status.telemetry),
    joining: list(status.joining),
    overlay: part(status.overlay),
    advice: part(status.advice),
  };
  return { ...model, verdict: judge(model) };
}

function readMembers(status, node) {
  const members = list(status.members).map((member) => ({ ...member }));
  // The node may omit itself; it is added here.
  if (node.name && !members.some((member) => member.name === node.name)) {
    members.push({ id: node.id, name: node.name, incarnation: node.incarnation, state: "up" });
  }
  for (const member of members) {
    member.self = member.name !== undefined && member.name === node.name;
    if (member.self) member.since_s = node.uptime_s ?? member.since_s;
  }
  return members.sort((a, b) => byName(String(a.name), String(b.name)));
}

// Replicas come as a list of rows, or as an object from name to the highest entry that each has.
function readGroup(group) {
  const peers = Array.isArray(group.peers)
    ? list(group.peers)
    : Object.entries(part(group.peers)).map(([name, match]) => ({ name, ...(typeof match === "number" ? { match } : part(match)) }));
  const digest = typeof group.digest === "number" ? group.digest.toString(16).padStart(8, "0") : group.digest;
  return { ...group, digest, peers: peers.sort((a, b) => byName(String(a.name), String(b.name))) };
}

function readEvents(events, members) {
  const names = new Map(members.map((member) => [member.id, member.name]));
  const named = (text) => String(text ?? "").replace(/\b[0-9a-f]{32}\b/g, (id) => names.get(id) ?? id.slice(0, 8));
  const times = events.map((event) => Date.parse(event.at) || 0);
  // Events of the same moment keep the order in which they came, whichever end the newest is at.
  const newestLast = times.length > 1 && times[0] < times.at(-1);
  const rows = events.map((event, i) => ({ ...event, text: named(event.text), order: newestLast ? -i : i, time: times[i] }));
  return rows.sort((a, b) => b.time - a.time || a.order - b.order).slice(0, EVENTS_MAX);
}

// -- paths ---------------------------------------------------------------------------------------------------------

// The node states what a path is worth (holdfast.health.verdict); the page has no definition of its own.
const STATES = { ok: "ok", "soft error": "soft", dead: "dead", stale: "unknown", unknown: "unknown" };
export const pathState = (path) => STATES[path.state] ?? "unknown";
const verdictOf = (path) => part(path.verdict);

function readSubnets(paths, members) {
  const subnets = new Map();
  const subnet = (name) => {
    if (!subnets.has(name)) subnets.set(name, { name, names: new Set(), rows: new Map() });
    return subnets.get(name);
  };
  for (const member of members) {
    for (const adapter of list(member.adapters)) subnet(adapter.subnet ?? "").names.add(member.name);
  }
  for (const path of paths) {
    const { names, rows } = subnet(path.subnet ?? "");
    names.add(path.sender).add(path.listener);
    const key = cellKey(path.sender, path.listener);
    if (!rows.has(key)) rows.set(key, []);
    rows.get(key).push(path);
  }
  const gone = (member) => member.state === "down" || member.state === "left";
  const down = new Set(members.filter(gone).map((member) => member.name));
  return [...subnets.values()].sort((a, b) => byName(a.name, b.name)).map((raw) => readSubnet(raw, down));
}

export const cellKey = (sender, listener) => `${sender}\u0000${listener}`;

function readSubnet({ name, names, rows }, down) {
  const nodes = [...names].sort(byName).map((node) => ({ name: node, down: down.has(node) }));
  const cells = new Map();
  const counts = { ok: 0, soft: 0, dead: 0, unknown: 0 };
  for (const sender of nodes) {
    for (const listener of nodes) {
      if (sender === listener) continue;
      const key = cellKey(sender.name, listener.name);
      const cell = readCell(sender, listener, name, rows.get(key) ?? []);
      cells.set(key, cell);
      counts[cell.state] += 1;
    }
  }
  return { name, nodes, cells, counts };
}

function readCell(sender, listener, subnet, rows) {
  rows.sort((a, b) => byName(String(a.transport), String(b.transport)));
  const cell = { sender: sender.name, listener: listener.name, subnet, rows, excused: sender.down || listener.down };
  if (cell.excused) {
    // Rows of a listener that is down are from before; they are not withdrawn.
    const names = [sender, listener].filter((node) => node.down).map((node) => node.name);
    const sentence = `${names.join(" and ")} ${names.length > 1 ? "are" : "is"} down`;
    return { ...cell, rows: [], state: "dead", ...explain("dead", []), sentence };
  }
  const state = worst(rows.map((row) => STATES[verdictOf(row).state] ?? "unknown"));
  return { ...cell, state, ...explain(state, rows) };
}

// A cell may have several pairs of adapters. Nothing passes only if nothing passes on any of them.
function worst(states) {
  const known = states.filter((state) => state !== "unknown");
  if (!known.length) return "unknown";
  const first = known[0];
  return known.every((state) => state === first) ? first : "soft";
}

const SYMBOLS = { ok: "✓", dead: "✕", unknown: "?" };
const SENTENCES = { ok: "everything passes", dead: "nothing is heard", unknown: "not known yet" };

function explain(state, rows) {
  if (state !== "soft") return { label: SYMBOLS[state], brief: SYMBOLS[state], sentence: SENTENCES[state] };
  const verdicts = rows.map(verdictOf).filter((verdict) => verdict.state === "soft error" || verdict.state === "dead");
  const label = String(verdicts[0]?.label ?? "");
  const sentence = [...new Set(verdicts.map((verdict) => String(verdict.text ?? "")))].join("; ");
  return { label, brief: label.replace(/^(no|not|0x) ?/, ""), sentence };
}

export function percent(ppm) {
  const value = ppm / 10_000;
  return `${value >= 10 || Number.isInteger(value) ? Math.round(value) : value.toFixed(value < 0.1 ? 2 : 1)}%`;
}

// -- the sentence at the top ---------------------------------------------------------------------------------------

function judge({ node, members, subnets, groups, joining }) {
  const troubles = [...nodeTroubles(node, members, joining), ...groupTroubles(groups), ...pathTroubles(subnets)];
  const total = (state) => subnets.reduce((sum, subnet) => sum + subnet.counts[state], 0);
  const paths = total("ok") + total("soft") + total("dead") + total("unknown");
  const count = (kind) => troubles.filter((trouble) => trouble.kind === kind).length;
  const parts = [
    count("join") && "This node cannot join",
    count("down") && plural(count("down"), "member") + " down",
    count("left") && plural(count("left"), "member") + " left",
    count("stopped") && plural(count("stopped"), "unit") + " stopped",
    count("group") && plural(count("group"), "group") + " in trouble",
    count("dead") && plural(count("dead"), "dead path"),
    count("soft") && plural(count("soft"), "soft error"),
  ].filter(Boolean);
  const figures = { paths, ok: total("ok"), unknown: total("unknown") };
  if (parts.length) {
    const level = troubles.some((trouble) => trouble.level === "dead") ? "dead" : "soft";
    return { level, text: parts.join(", "), troubles, figures };
  }
  if (!figures.ok) return { level: "unknown", text: "No path has been measured yet", troubles, figures };
  const measured = figures.unknown ? `${figures.ok} of ${figures.paths} paths are known: all is well` : "All is well";
  return { level: "ok", text: measured, troubles, figures };
}

function nodeTroubles(node, members, joining) {
  const stopped = (Array.isArray(node.stopped_units) ? node.stopped_units : []).map((unit) => ({
    kind: "stopped", level: "dead", text: `unit ${unit} of ${node.name} failed twice and is stopped`,
  }));
  const down = members
    .filter((member) => member.state === "down")
    .map((member) => ({ kind: "down", level: "dead", text: `${member.name} is down` }));
  const left = members
    .filter((member) => member.state === "left")
    .map((member) => ({ kind: "left", level: "soft", text: `${member.name} left: it was stopped normally` }));
  // One outdated address of several is not a fault: only a node that reached no other is reported.
  const alone = members.filter((member) => member.state === "up").length <= 1;
  const joins = alone ? joining.map((row) => ({ kind: "join", level: "dead", text: String(row.text ?? "cannot join") })) : [];
  return [...joins, ...stopped, ...down, ...left];
}

function groupTroubles(groups) {
  return groups.flatMap((group) => {
    const suspended = `is suspended on this node${group.why ? `: ${group.why}` : ""}`;
    const why = group.state === "suspended" ? suspended : group.leader ? "" : "has no leader";
    return why ? [{ kind: "group", level: "dead", text: `group ${group.name} ${why}` }] : [];
  });
}

function pathTroubles(subnets) {
  const cells = subnets.flatMap((subnet) => [...subnet.cells.values()]);
  // Paths of a member that is down are dead as well; listing each would hide the rest.
  const troubled = cells.filter((cell) => cell.state === "soft" || (cell.state === "dead" && !cell.excused));
  troubled.sort((a, b) => (a.state === b.state ? 0 : a.state === "dead" ? -1 : 1));
  return troubled.map((cell) => ({
    kind: cell.state, level: cell.state, text: `${cell.sender} → ${cell.listener} on ${cell.subnet}: ${cell.sentence}`,
  }));
}
