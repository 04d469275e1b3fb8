// The map: nodes on a ring, realm by realm; links coloured by the health of their paths; one tree drawn on it.

import { $, el, keep, setAttribute, setClass, setText } from "./dom.js";
import { byName, cellKey, texts } from "./model.js";

const SIZE = 640;
const RADIUS = 230;
const LABEL_GAP = 16;
const LABEL_ROOM = SIZE / 2 - RADIUS - LABEL_GAP;
const LETTER = 0.62; // Width of a letter, as a part of its size.
const FONT = { min: 13, max: 22, crowded: 40 };
const ASK_AGAIN_MS = 5000;
const STATES = { ok: "everything passes", soft: "soft error", dead: "dead", unknown: "not known yet" };

const svg = (tag) => document.createElementNS("http://www.w3.org/2000/svg", tag);
const pairKey = (a, b) => (byName(a, b) < 0 ? cellKey(a, b) : cellKey(b, a));

// -- what is drawn: pure -------------------------------------------------------------------------------------------

// Nodes in the order of realms and names, each with its place on the ring.
export function placeNodes(rows, members) {
  const down = new Set(members.filter((m) => m.state === "down" || m.state === "left").map((m) => m.name));
  const nodes = rows.map((row) => ({ name: String(row.name), realm: String(row.realm ?? ""), reachable: Boolean(row.reachable), peers: texts(row.peers) }));
  nodes.sort((a, b) => byName(a.realm, b.realm) || byName(a.name, b.name));
  const realms = [...new Set(nodes.map((node) => node.realm))];
  const slots = nodes.length + (realms.length > 1 ? realms.length : 0); // A gap between two realms.
  let slot = 0;
  let realm = nodes[0]?.realm;
  for (const node of nodes) {
    if (node.realm !== realm) slot += 1;
    realm = node.realm;
    const angle = (2 * Math.PI * slot) / Math.max(slots, 1) - Math.PI / 2;
    node.x = SIZE / 2 + RADIUS * Math.cos(angle);
    node.y = SIZE / 2 + RADIUS * Math.sin(angle);
    node.angle = angle;
    node.state = down.has(node.name) || !node.reachable ? "dead" : "ok";
    slot += 1;
  }
  return { nodes, realms };
}

// A link has the state of its paths on all subnets, in both directions.
export function linkState(subnets, a, b) {
  const cells = subnets.flatMap((subnet) => [subnet.cells.get(cellKey(a, b)), subnet.cells.get(cellKey(b, a))]);
  const states = cells.filter(Boolean).map((cell) => cell.state).filter((state) => state !== "unknown");
  if (!states.length) return "unknown";
  if (states.every((state) => state === "ok")) return "ok";
  return states.every((state) => state === "dead") ? "dead" : "soft";
}

// Each link once; one that only one end announces is not there (yet).
export function linksOf(nodes, subnets) {
  const peers = new Map(nodes.map((node) => [node.name, new Set(node.peers)]));
  const links = new Map();
  for (const node of nodes) {
    for (const peer of node.peers) {
      if (!peers.get(peer)?.has(node.name)) continue;
      const key = pairKey(node.name, peer);
      if (!links.has(key)) links.set(key, { key, a: node.name, b: peer, state: linkState(subnets, node.name, peer) });
    }
  }
  return [...links.values()];
}

// The map is drawn smaller than its own units: names are as large as fits beside the ring.
export function labelSize(names) {
  const longest = Math.max(1, ...names.map((name) => name.length));
  const fits = names.length > FONT.crowded ? FONT.min : LABEL_ROOM / (LETTER * longest);
  return Math.round(Math.min(Math.max(fits, FONT.min), FONT.max));
}

// The end of a long name tells more than its beginning.
export function shortened(name, size) {
  const letters = Math.floor(LABEL_ROOM / (LETTER * size));
  return name.length <= letters ? name : `…${name.slice(1 - letters)}`;
}

function treeLinks(tree) {
  const keys = new Set();
  for (const [name, peers] of Object.entries(tree ?? {})) for (const peer of texts(peers)) keys.add(pairKey(name, peer));
  return keys;
}

// -- the tree that is shown ----------------------------------------------------------------------------------------

let chosen = "";
let tree = null; // Names of its nodes, each with its neighbours on it.
let askedMs = -Infinity;

function chooseTree(trees) {
  const select = $("map-tree");
  const options = [{ id: "", label: "no tree" }, ...trees.map((one) => ({ id: String(one.tree), label: labelOf(one) }))];
  keep(select, options, (one) => one.id, () => el("option"), (option, one) => {
    setAttribute(option, "value", one.id);
    setText(option, one.label);
  });
  if (!options.some((one) => one.id === chosen)) chosen = "";
  if (select.value !== chosen) select.value = chosen;
  if (!select.listening) {
    select.listening = true;
    select.addEventListener("change", () => {
      chosen = select.value;
      tree = null;
      askedMs = -Infinity;
      ask();
    });
  }
}

const labelOf = (one) => {
  const roles = (Array.isArray(one.roles) ? one.roles : []).map((role) => String(role.role)).sort(byName);
  const named = roles.slice(0, 3).join(", ") + (roles.length > 3 ? ` and ${roles.length - 3} more` : "");
  return `${String(one.tree).slice(0, 8)}: ${named || "no roles"}`;
};

async function ask() {
  if (!chosen || performance.now() - askedMs < ASK_AGAIN_MS) return;
  askedMs = performance.now();
  const wanted = chosen;
  const token = sessionStorage.getItem("holdfast-token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`api/tree?id=${wanted}`, { headers }).catch(() => null);
  if (wanted !== chosen) return;
  const read = answer?.ok ? await answer.json() : null;
  tree = read?.nodes ?? null;
  setText($("map-text"), !read ? "The tree could not be read." : read.complete ? "" : "Some nodes did not answer: parts of the tree may be missing.");
  if (drawn) draw(drawn);
}

// -- drawing -------------------------------------------------------------------------------------------------------

let drawn = null;

export function showMap(section, model) {
  const rows = Array.isArray(model.overlay.map) ? model.overlay.map : [];
  section.hidden = rows.length < 2;
  if (section.hidden) return;
  drawn = model;
  chooseTree(Array.isArray(model.overlay.trees) ? model.overlay.trees : []);
  ask();
  draw(model);
}

function draw(model) {
  const { nodes, realms } = placeNodes(model.overlay.map, model.members);
  const at = new Map(nodes.map((node) => [node.name, node]));
  const links = linksOf(nodes, model.subnets);
  const onTree = treeLinks(chosen ? tree : null);
  keep($("map-links"), links, (link) => link.key, newLine, (line, link) => {
    const [a, b] = [at.get(link.a), at.get(link.b)];
    place(line, { x1: a.x, y1: a.y, x2: b.x, y2: b.y });
    setAttribute(line, "class", `link ${link.state}${onTree.has(link.key) ? " tree" : ""}`);
    setText(line.firstElementChild, `${link.a} and ${link.b}: ${STATES[link.state]}`);
  });
  const size = labelSize(nodes.map((node) => node.name));
  setAttribute($("map-nodes"), "font-size", String(size));
  keep($("map-nodes"), nodes, (node) => node.name, newNode, (group, node) => {
    const [dot, label, title] = group.children;
    place(dot, { cx: node.x, cy: node.y, r: 7 });
    const [dx, dy] = [Math.cos(node.angle), Math.sin(node.angle)];
    // Above and below its node a name needs room for its own height.
    place(label, { x: node.x + LABEL_GAP * dx, y: node.y + (LABEL_GAP + size * 0.4 * Math.abs(dy)) * dy + size * 0.35 });
    setAttribute(label, "text-anchor", Math.abs(dx) < 0.3 ? "middle" : dx > 0 ? "start" : "end");
    setText(label, shortened(node.name, size));
    setText(title, node.name);
    const role = chosen && tree && node.name in tree ? " tree" : "";
    const self = node.name === model.node.name ? " me" : "";
    setAttribute(group, "class", `node ${node.state} realm-${realms.indexOf(node.realm) % 6}${role}${self}`);
    setAttribute(group, "aria-label", `${node.name}, realm ${node.realm}`);
  });
  keep($("map-realms"), realms.length > 1 ? realms : [], (realm) => realm, () => el("li"), (item, realm) => {
    setClass(item, `realm-${realms.indexOf(realm) % 6}`);
    setText(item, realm);
  });
}

function newLine() {
  const line = svg("line");
  line.append(svg("title"));
  return line;
}

function newNode() {
  const group = svg("g");
  group.append(svg("circle"), svg("text"), svg("title"));
  return group;
}

function place(element, values) {
  for (const [name, value] of Object.entries(values)) setAttribute(element, name, String(Math.round(value * 10) / 10));
}
