// The page: light or dark as Airflow is, looks again every 15 s, fills the restore form, and asks Airflow's API to start it.
"use strict";

const EVERY_MS = 15_000;
const framed = window.parent !== window;

// Resolved while the mouse is not pressed. A page that moves between press and release takes the click away, so
// what is answered late waits for it.
let released = Promise.resolve();
document.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return; // of the others, a menu may take the release
  released = new Promise((free) => {
    const after = () => setTimeout(free); // the click comes behind it
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, after, { once: true });
  });
});

function theme() {
  const said = localStorage.getItem("theme");
  if (said === "light" || said === "dark") document.documentElement.dataset.theme = said;
  else delete document.documentElement.dataset.theme;
}

// Airflow's frame may not navigate the window around it: a link of that window does.
function leave(href) {
  const around = framed ? window.parent.document : document;
  const link = around.createElement("a");
  link.href = href;
  link.hidden = true;
  around.body.append(link);
  link.click();
  link.remove();
}

// What somebody typed into Tables stays; what another line's button filled in does not.
function choose(moment, found) {
  const field = document.getElementById("to"), tables = document.getElementById("tables");
  field.value = moment;
  field.dispatchEvent(new Event("change"));
  if (found && (!tables.value.trim() || tables.value === tables.dataset.found)) {
    tables.value = tables.dataset.found = found;
  }
  field.scrollIntoView({ block: "center" });
  field.focus();
}

// The moment of the line that lies below the mouse.
function momentAt(line, event) {
  const box = line.getBoundingClientRect();
  const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  const start = BigInt(line.dataset.start), now = BigInt(line.dataset.now);
  return String(start + ((now - start) * BigInt(Math.round(share * 1e6))) / 1_000_000n);
}

async function ask(method, path, body) {
  const answer = await fetch(new URL(path, location.href), {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  const why = typeof found.detail === "string" ? found.detail : JSON.stringify(found.detail ?? answer.statusText);
  throw new Error(`Airflow refused it (${answer.status}): ${why}`);
}

// The fields of the DAG's form that are filled in, by their names in a run's conf.
function conf(form) {
  const found = {};
  for (const each of form.querySelectorAll("[name]")) {
    if (each.type === "checkbox") found[each.name] = each.checked;
    else if (!each.value.trim()) continue;
    else if (each.matches("textarea")) found[each.name] = each.value.split("\n").filter((line) => line.trim());
    else found[each.name] = each.value;
  }
  return found;
}

// What the page's own side says of the form: which moment it means, and why it cannot be started.
function check(form, asked) {
  return ask("POST", `check?cluster=${encodeURIComponent(form.dataset.cluster)}`, asked);
}

async function start(form) {
  const dag = encodeURIComponent(form.dataset.dag), asked = conf(form);
  const { moment, refused } = await check(form, asked);
  if (refused) throw new Error(refused);
  document.getElementById("to-is").textContent = moment;
  if ("paused" in form.dataset) await ask("PATCH", `../api/v2/dags/${dag}`, { is_paused: false });
  const run = await ask("POST", `../api/v2/dags/${dag}/dagRuns`, { logical_date: null, conf: asked });
  // The plan of a dry run, or why there is none, stands in the log of its task.
  const task = asked.dry_run ? "/tasks/plan" : "";
  leave(new URL(`../dags/${dag}/runs/${encodeURIComponent(run.dag_run_id)}${task}`, location.href).href);
}

async function search(form) {
  const query = new URLSearchParams(new FormData(form));
  query.set("cluster", form.dataset.cluster);
  const answer = await fetch(new URL(`search?${query}`, location.href));
  if (!answer.ok || answer.redirected) throw new Error(`Airflow refused it (${answer.status})`);
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  await released;
  document.getElementById("found").replaceChildren(...document.adoptNode(found.body).childNodes);
}

// A form's button is pressed once; what goes wrong stands in the element.
function sends(form, send, answer) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    answer.textContent = "";
    send(form)
      .catch((error) => { answer.textContent = error.message; })
      .finally(() => { button.disabled = false; });
  });
}

// How the element that has the focus is found again on the fresh page.
function held() {
  const at = document.activeElement;
  if (!at?.closest("#seen, #rest")) return null;
  if (at.dataset.moment) return `[data-moment="${at.dataset.moment}"]`;
  if (at.matches(".scroll")) return ".scroll";
  return at.hasAttribute("href") ? `[href="${CSS.escape(at.getAttribute("href"))}"]` : null;
}

async function again() {
  if (document.hidden) return;
  const answer = await fetch(location.href).catch(() => null);
  const text = answer?.ok && !answer.redirected ? await answer.text().catch(() => null) : null;
  await released;
  const stale = document.getElementById("stale");
  if (text === null) {
    const why = "Airflow does not answer: what stands here is old, and it does not get newer. Load the page again.";
    if (stale && !stale.textContent) stale.textContent = why;
    return;
  }
  if (stale) stale.textContent = "";
  const focused = held(), scrolled = document.querySelector(".scroll")?.scrollTop;
  const found = new DOMParser().parseFromString(text, "text/html");
  for (const id of ["seen", "rest"]) {
    const fresh = found.getElementById(id);
    if (fresh) document.getElementById(id)?.replaceWith(document.adoptNode(fresh));
  }
  document.title = found.title;
  if (focused) document.querySelector(focused)?.focus({ preventScroll: true });
  if (scrolled) document.querySelector(".scroll")?.scrollTo(0, scrolled);
}

theme();
window.addEventListener("storage", theme);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-leaves]");
  if (link && framed && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    leave(link.href);
  }
  const button = event.target.closest("[data-moment]");
  if (button) choose(button.dataset.moment, button.dataset.tables);
  const line = event.target.closest("svg.line");
  if (line && document.getElementById("to")) choose(momentAt(line, event));
});
document.addEventListener("mousemove", (event) => {
  const line = event.target.closest("svg.line");
  for (const pointer of document.querySelectorAll(".pointer")) {
    pointer.setAttribute("visibility", line ? "visible" : "hidden");
    if (line) {
      const x = event.clientX - line.getBoundingClientRect().left;
      pointer.setAttribute("x1", x);
      pointer.setAttribute("x2", x);
    }
  }
});
document.addEventListener("DOMContentLoaded", () => {
  const form = document.getElementById("form");
  if (form) {
    const field = document.getElementById("to"), said = document.getElementById("to-is");
    field.addEventListener("input", () => { said.textContent = ""; });
    field.addEventListener("change", async () => {
      // Its tables are looked at when the form is sent: that reads the archive's schema.
      const asked = field.value, { to, target } = conf(form);
      const found = await check(form, { to, target }).catch((error) => ({ refused: error.message }));
      await released;
      if (field.value === asked) said.textContent = found.moment || found.refused;
    });
    sends(form, start, document.getElementById("answer"));
  }
  const wanted = document.getElementById("search");
  if (wanted) sends(wanted, search, document.getElementById("found"));
  setInterval(again, EVERY_MS);
});
