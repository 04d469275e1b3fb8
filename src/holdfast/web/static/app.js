// Assembles the page: shows each snapshot of the stream, and the loss of contact.

import { showDialogs } from "./dialogs.js";
import { showAdvice } from "./advice.js";
import { $, age, setHeard, setText, tickAges } from "./dom.js";
import { showMap } from "./map.js";
import { showMatrices } from "./matrix.js";
import { readStatus } from "./model.js";
import { showObjects } from "./objects.js";
import { showResults } from "./results.js";
import { showEvents, showGroups, showIncidents, showLinks, showMembers, showVerdict } from "./sections.js";
import { showServices } from "./services.js";
import { Stream } from "./stream.js";

let newest = null; // The snapshot to be drawn next; a newer one replaces it.
let node = {};
let contact = "connecting";
let reason = "";
let trouble = ""; // The error that the node reports instead of its status.
let triedToken = false;
let lost = null; // When contact was lost: { at: Date, ms: on the page's clock }.

// -- snapshots -----------------------------------------------------------------------------------------------------

function onSnapshot(status) {
  trouble = status.error ?? "";
  if (trouble) return showContact();
  if (newest === null) requestAnimationFrame(draw); // Waits while the tab is hidden.
  newest = { status, ms: performance.now() };
}

function draw() {
  const { status, ms } = newest;
  newest = null;
  setHeard(ms);
  const model = readStatus(status);
  node = model.node;
  setText($("domain"), node.domain ?? "Holdfast");
  setText($("node"), node.name ? `as seen by ${node.name}` : "");
  setText($("version"), node.version ? `Holdfast ${node.version}` : "Holdfast");
  drawEach(
    () => showVerdict(model),
    () => showIncidents($("incidents-section"), $("incidents"), model.incidents),
    () => showAdvice(model.advice, model.members),
    () => showMatrices($("matrices"), model.subnets),
    () => showMap($("map-section"), model),
    () => showGroups($("groups"), model.groups, node),
    () => showServices($("services-section"), $("services"), model.groups),
    () => showDialogs(status),
    () => showMembers($("members"), model.members),
    () => showEvents($("events"), model.events),
    () => showLinks($("links"), model.links),
    () => showObjects(status),
    () => showResults(status.results),
  );
  $("main").hidden = false;
  document.body.dataset.version = String(Number(document.body.dataset.version ?? 0) + 1);
  showContact();
}

// A status of another version may break one part of the page; the others are still shown.
function drawEach(...parts) {
  for (const draw of parts) {
    try {
      draw();
    } catch (error) {
      reportError(error);
    }
  }
}

// -- contact -------------------------------------------------------------------------------------------------------

function onContact(state, why) {
  if (state === "lost" && contact !== "lost") lost = { at: new Date(), ms: performance.now() };
  contact = state;
  reason = why;
  showContact();
}

function showContact() {
  document.body.dataset.contact = contact;
  $("locked").hidden = contact !== "locked";
  if (contact === "locked") {
    $("main").hidden = true;
    setText($("unlock-text"), triedToken ? "That token was not accepted." : "");
    $("token").focus();
  }
  const words = { connecting: "connecting", live: "live", lost: "no contact", locked: "locked" };
  setText($("contact-text"), words[contact]);
  const name = [node.domain, node.name].filter(Boolean).join(" · ");
  const mark = contact === "lost" ? "✕ no contact" : "";
  document.title = [mark, name, "Holdfast"].filter(Boolean).join(" · ");
  showBanner();
}

function showBanner() {
  let text = "";
  if (contact === "lost") {
    const last = $("main").hidden ? "" : " The last known state is shown below.";
    text = `No contact with ${node.name ?? "the node"} since ${lost.at.toLocaleTimeString("en-GB")}.${last} ${reason || "Trying again."}`;
  } else if (contact === "live" && trouble) {
    text = `${trouble}. The last known state is shown below.`;
  }
  setText($("banner-text"), text);
  $("banner").hidden = !text;
  $("retry").hidden = contact !== "lost";
  showBannerAge();
}

// Separate from the text, or a screen reader would repeat everything each second.
function showBannerAge() {
  setText($("banner-age"), contact === "lost" ? `${age((performance.now() - lost.ms) / 1000)} ago` : "");
}

// -- the token -----------------------------------------------------------------------------------------------------

const TOKEN = "holdfast-token";

function firstToken() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given === null) return sessionStorage.getItem(TOKEN) ?? "";
  // Remove it from the address bar: it would end up in history, bookmarks and screenshots.
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
  sessionStorage.setItem(TOKEN, given);
  return given;
}

function useToken(token) {
  triedToken = token !== "";
  $("plain").hidden = triedToken; // A link can carry the token only in the address.
  return token;
}

const stream = new Stream({ token: useToken(firstToken()), onSnapshot, onContact });

$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = useToken($("token").value);
  sessionStorage.setItem(TOKEN, token);
  setText($("unlock-text"), "");
  stream.unlock(token);
});
$("retry").addEventListener("click", () => stream.retryNow());

setInterval(() => {
  // Without contact the ages are unknown, so they do not advance.
  if (contact === "live") tickAges(performance.now());
  showBannerAge();
}, 1000);
