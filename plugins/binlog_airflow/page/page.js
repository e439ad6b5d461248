// The page: light or dark as Airflow is, looks again every 15 s, fills the restore form, and asks Airflow's API to start it.
"use strict";

const EVERY_MS = 15_000;
const framed = window.parent !== window;

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

function clock(text) {
  if (!/^\d{15,20}$/.test(text)) return "";
  return `${new Date(Number(BigInt(text) >> 18n)).toISOString().slice(0, 19).replace("T", " ")}Z`;
}

function choose(moment) {
  const field = document.getElementById("to");
  field.value = moment;
  field.dispatchEvent(new Event("input"));
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
  const answer = await fetch(new URL(`../api/v2/${path}`, location.href), {
    method,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return found;
  const why = typeof found.detail === "string" ? found.detail : JSON.stringify(found.detail ?? answer.statusText);
  throw new Error(`Airflow refused it (${answer.status}): ${why}`);
}

async function start(form) {
  const dag = encodeURIComponent(form.dataset.dag);
  const value = (id) => document.getElementById(id).value.trim();
  const tables = value("tables").split(/\s*\n\s*/).filter(Boolean);
  const conf = {
    to: value("to"),
    target: value("target"),
    tables: tables.length ? tables : null,
    verify: document.getElementById("verify").checked,
    dry_run: document.getElementById("dry_run").checked,
  };
  if ("paused" in form.dataset) await ask("PATCH", `dags/${dag}`, { is_paused: false });
  const run = await ask("POST", `dags/${dag}/dagRuns`, { logical_date: null, conf });
  leave(new URL(`../dags/${dag}/runs/${encodeURIComponent(run.dag_run_id)}`, location.href).href);
}

// How the element that has the focus is found again on the fresh page.
function held() {
  const at = document.activeElement;
  if (at?.dataset.moment) return `[data-moment="${at.dataset.moment}"]`;
  if (at?.matches(".scroll")) return ".scroll";
  return at?.hasAttribute("href") ? `[href="${CSS.escape(at.getAttribute("href"))}"]` : null;
}

async function again() {
  if (document.hidden) return;
  const answer = await fetch(location.href).catch(() => null);
  const stale = document.getElementById("stale");
  if (!answer?.ok || answer.redirected) {
    const why = "Airflow does not answer: what stands here is old, and it does not get newer. Load the page again.";
    if (stale && !stale.textContent) stale.textContent = why;
    return;
  }
  if (stale) stale.textContent = "";
  const focused = held(), scrolled = document.querySelector(".scroll")?.scrollTop;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
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
  if (button) choose(button.dataset.moment);
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
    const field = document.getElementById("to");
    field.addEventListener("input", () => {
      document.getElementById("to-is").textContent = clock(field.value.trim());
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const button = form.querySelector("[type=submit]"), answer = document.getElementById("answer");
      button.disabled = true;
      answer.textContent = "";
      start(form)
        .catch((error) => { answer.textContent = error.message; })
        .finally(() => { button.disabled = false; });
    });
  }
  setInterval(again, EVERY_MS);
});
