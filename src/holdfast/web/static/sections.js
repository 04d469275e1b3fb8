// Everything on the page but the matrices: summary, members, groups, links, events.

import { $, count, el, keep, setAge, setAttribute, setClass, setText } from "./dom.js";

const TROUBLES_MAX = 6;

// -- summary -------------------------------------------------------------------------------------------------------

export function showVerdict({ verdict, node, members, queues, telemetry }) {
  setClass($("verdict"), `verdict panel is-${verdict.level}`);
  setText($("verdict-text"), verdict.text);
  const more = verdict.troubles.length - TROUBLES_MAX;
  const shown = verdict.troubles.slice(0, more === 1 ? TROUBLES_MAX + 1 : TROUBLES_MAX);
  if (more > 1) shown.push({ level: "more", text: `and ${more} more` });
  keep($("troubles"), shown, (one) => one.text, () => el("li"), (line, one) => {
    setClass(line, `is-${one.level}`);
    setText(line, one.text);
  });
  const waiting = Number(queues.intake) || 0;
  const tiles = [
    ["Members up", `${members.filter((member) => member.state === "up").length} of ${members.length}`],
    ["Paths fine", `${verdict.figures.ok} of ${verdict.figures.paths}`],
    ["Waiting inputs", count(waiting)],
    ["Facts recorded", telemetry.facts && count(telemetry.facts)],
    ["Facts lost", telemetry.facts && count(telemetry.lost), telemetry.lost > 0 ? "is-soft" : ""],
    ["Security", node.security, node.security === "plain" ? "is-soft" : ""],
    ["Up for", node.uptime_s],
  ].filter(([, value]) => value !== undefined);
  keep($("tiles"), tiles, ([name]) => name, ([name]) => el("div", "", el("dt", "", name), el("dd")), (tile, [name, value, mark = ""]) => {
    const figure = tile.lastElementChild;
    setClass(figure, mark);
    if (name === "Up for") setAge(figure, value);
    else setText(figure, value);
  });
}

// -- members -------------------------------------------------------------------------------------------------------

const MEMBER_MARKS = { up: "ok", down: "dead", left: "soft", joining: "soft", known: "unknown" };

export function showMembers(container, members) {
  const body = tableIn(container, ["Name", "State", "Since", "Incarnation", "Adapters"]);
  keep(body, members, (member) => member.id ?? member.name, () => row(5, [2, 3]), (line, member) => {
    const [name, state, since, incarnation, adapters] = line.cells;
    setText(name, member.name);
    name.classList.toggle("me", Boolean(member.self));
    badge(state, member.state ?? "unknown", MEMBER_MARKS[member.state] ?? "unknown");
    setAge(since, member.since_s);
    setText(incarnation, member.incarnation ?? "–");
    chips(adapters, (member.adapters ?? []).map((adapter) => ({
      text: adapter.subnet ?? adapter.name,
      aside: `${adapter.address ?? ""} ${(adapter.transports ?? []).join(" ")}`,
    })));
  });
}

// -- groups --------------------------------------------------------------------------------------------------------

const LAG_MAX = 1000; // Entries: those just in flight do not count.
const GROUP_MARKS = { leading: "lead", following: "ok", restoring: "soft", starting: "soft", suspended: "dead" };

export function showGroups(container, groups, node) {
  const items = groups.length ? groups : [null];
  keep(container, items, (group) => (group ? `group ${group.name}` : "none"), makeGroup, (card, group) => group && fillGroup(card, group, node));
}

function makeGroup(group) {
  if (!group) return el("p", "panel empty", "This node has no replica of any group.");
  const card = el("article", "panel group");
  card.append(el("header", "panel-head", el("h3", "", group.name ?? "?"), el("span")), el("p", "why"), el("dl", "facts"), el("div"));
  return card;
}

function fillGroup(card, group, node) {
  const [head, why, facts, replicas] = card.children;
  setText(why, group.why);
  badge(head.lastElementChild, group.state ?? "unknown", group.leader ? (GROUP_MARKS[group.state] ?? "unknown") : "dead");
  const lag = group.lag ?? group.commit - group.applied;
  const rows = [
    ["Leader", group.leader || "none", group.leader ? "" : "is-dead"],
    ["Term", group.term ?? "–"],
    ["Committed", count(group.commit)],
    ["Applied", count(group.applied)],
    ["Lag", Number.isFinite(lag) ? count(lag) : "–", lag > LAG_MAX ? "is-soft" : ""],
    ["Position", count(group.position)],
    ["Digest", group.digest || "–", "mono"],
  ];
  keep(facts, rows, ([name]) => name, ([name]) => el("div", "", el("dt", "", name), el("dd")), (fact, [, value, mark = ""]) => {
    setClass(fact.lastElementChild, mark);
    setText(fact.lastElementChild, value);
  });
  showReplicas(replicas, group, node);
}

function showReplicas(container, group, node) {
  const me = { name: node.name, match: group.commit, applied: group.applied, held: group.stability?.held, state: "this node" };
  const peers = group.peers.filter((peer) => peer.name !== node.name);
  if (!peers.length) return container.replaceChildren();
  const body = tableIn(container, ["Replica", "Last entry", "Applied", "Lag", "Held bytes"]);
  keep(body, [me, ...peers], (peer) => peer.name, () => row(5, [1, 2, 3, 4]), (line, peer) => {
    const [name, match, applied, behind, held] = line.cells;
    setText(name, peer.name);
    name.classList.toggle("me", peer === me);
    name.classList.toggle("leads", peer.name === group.leader);
    setText(match, count(peer.match));
    setText(applied, count(peer.applied));
    setText(held, count(peer.held));
    const lag = Math.max(0, (group.commit ?? 0) - (peer.applied ?? peer.match ?? 0));
    const gone = peer.heard === false;
    setText(behind, gone ? "not heard" : lag ? count(lag) : "up to date");
    setClass(behind, gone || lag > LAG_MAX ? "number is-soft" : "number");
  });
}

// -- links ---------------------------------------------------------------------------------------------------------

const CHANNELS = ["sync", "data", "bulk"];
const channelName = (channel) => CHANNELS[channel] ?? (channel >= 16 ? `port ${channel}` : `channel ${channel}`);

export function showLinks(container, links) {
  if (!links.length) return container.replaceChildren(el("p", "empty", "No links: this node is not connected to any other."));
  const body = tableIn(container, ["Channel", "Path in use", "Queued", "Unacked", "Sent", "Received", "Moves"]);
  const rows = links.flatMap((link) => [{ link }, ...(link.channels ?? []).map((channel) => ({ link, channel }))]);
  const key = ({ link, channel }) => `${link.peer}/${channel?.channel}`;
  keep(body, rows, key, (item) => (item.channel ? row(7, [2, 3, 4, 5, 6]) : makePeerRow()), fillLinkRow);
}

function makePeerRow() {
  const cell = el("td", "", el("div", "peer-line", el("b", "peer"), el("span"), el("span", "soft"), el("span", "flows")));
  cell.colSpan = 7;
  return el("tr", "first", cell);
}

const LINK_MARKS = { up: "ok", down: "dead" };

function fillLinkRow(line, { link, channel }) {
  if (!channel) {
    const [peer, state, session, flows] = line.cells[0].firstElementChild.children;
    setText(peer, link.peer);
    badge(state, link.state ?? "unknown", LINK_MARKS[link.state] ?? "soft");
    setText(session, [link.session && `session ${link.session}`, link.refused].filter(Boolean).join(" · "));
    return chips(flows, (link.flows ?? []).map(flowChip));
  }
  const [name, path, ...numbers] = line.cells;
  setText(name, channelName(channel.channel));
  setText(path, channel.path || "–");
  setClass(path, "mono");
  if (path.title !== (channel.reason ?? "")) path.title = channel.reason ?? "";
  ["queued", "unacked", "sent", "received", "moves"].forEach((key, i) => setText(numbers[i], count(channel[key])));
}

function flowChip(flow) {
  const state = flow.alive ? (flow.ready ? "ok" : "unknown") : "dead";
  const aside = flow.alive ? (flow.ready ? (flow.size ? `${flow.size} B` : "") : "opening") : "dead";
  return { text: flow.path ?? "?", aside, state };
}

// -- incidents -----------------------------------------------------------------------------------------------------

const INCIDENTS_MAX = 50;

export function showIncidents(section, container, incidents) {
  section.hidden = !incidents.length;
  const shown = incidents.slice(0, INCIDENTS_MAX);
  const key = (one) => [one.sender, one.sender_adapter, one.listener, one.listener_adapter, one.error_class, one.transport].join("/");
  keep(container, shown, key, makeIncident, fillIncident);
}

function makeIncident() {
  return el("li", "incident", el("span", "badge"), el("span", "what"), el("span", "soft age"));
}

function fillIncident(line, one) {
  const [mark, what, since] = line.children;
  setClass(mark, `badge is-${one.error_class === "dead" ? "dead" : "soft"}`);
  setText(mark, one.band ? `${one.error_class}, ${one.band}` : String(one.error_class ?? "?"));
  setText(what, `${one.text ?? ""}${one.count > 1 ? ` (${one.count} times)` : ""}`);
  setAge(since, one.since_s);
}

// -- events --------------------------------------------------------------------------------------------------------

export function showEvents(container, events) {
  const items = events.length ? events : [null];
  keep(container, items, (event) => (event ? `${event.at} ${event.kind} ${event.text}` : ""), makeEvent, () => {});
}

function makeEvent(event) {
  if (!event) return el("li", "empty", "No events yet.");
  const at = new Date(event.at);
  const time = el("time", "soft", Number.isNaN(at.valueOf()) ? String(event.at ?? "") : at.toLocaleTimeString("en-GB"));
  time.dateTime = time.title = String(event.at ?? "");
  return el("li", "", time, el("span", `kind kind-${event.kind}`, String(event.kind ?? "")), el("span", "what", String(event.text ?? "")));
}

// -- pieces --------------------------------------------------------------------------------------------------------

function tableIn(container, heads) {
  let table = container.querySelector(":scope > table");
  if (!table) {
    table = el("table", "", el("thead", "", el("tr", "", ...heads.map((text) => el("th", "", text)))), el("tbody"));
    for (const th of table.tHead.rows[0].cells) th.scope = "col";
    container.replaceChildren(table);
  }
  return table.tBodies[0];
}

function row(width, numbers) {
  return el("tr", "", ...Array.from({ length: width }, (_, i) => el("td", numbers.includes(i) ? "number" : "")));
}

function badge(element, text, state) {
  let inner = element.querySelector(":scope > .badge");
  if (!inner) element.append((inner = el("span", "badge")));
  setClass(inner, `badge is-${state}`);
  setText(inner, text);
}

const CHIP_MARKS = { ok: "✓", dead: "✕", unknown: "…" };

function chips(element, items) {
  keep(element, items, (item) => item.text, () => el("span", "chip", el("b"), el("i")), (chip, item) => {
    setClass(chip, `chip is-${item.state ?? "none"}`);
    setText(chip.firstElementChild, `${item.state ? CHIP_MARKS[item.state] + " " : ""}${item.text}`);
    setText(chip.lastElementChild, item.aside);
    setAttribute(chip, "title", `${item.text} ${item.aside}`);
  });
}

