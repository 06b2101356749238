// Live: a running job, from its stats file.

import { report } from "../app.js";
import { drawLines } from "../charts.js";
import { bytes, cell, colorOf, count, fixed, get, h, percent, table } from "../lib.js";

const PERIOD = 2_000; // milliseconds

export function open({ content, overview }) {
  let timer = null, isOpen = true, charts = [];
  const facts = h("dl", { className: "facts big" }), speed = h("div", { className: "chart", role: "img", "aria-label": "Samples per second" });
  const waiting = h("div", { className: "chart", role: "img", "aria-label": "Share of time waited" }), memory = h("div", { className: "chart", role: "img", "aria-label": "Memory" });
  const shares = h("div"), warnings = h("div"), work = h("div"), status = h("p", { role: "status" });
  const body = h("div", { hidden: true }, facts, warnings, h("h2", {}, "Samples per second"), speed, h("h2", {}, "Time waited for data"), waiting, h("h2", {}, "Memory"), memory, h("h2", {}, "Shares of samples"), shares, work);
  content.append(status, body);

  function draw(answer) {
    if (answer.waiting) {
      status.textContent = `${answer.waiting}. `;
      status.append(overview.has_stats ? "This page looks again every two seconds." : "");
      body.hidden = true;
      return;
    }
    const s = answer.summary;
    body.hidden = false;
    const restarts = Math.max(0, (answer.starts?.length ?? 1) - 1);
    status.textContent = { running: "The job is running.", closed: "The job has ended.", stale: "No record for a while: the job was killed, or waits." }[s.status] ?? "";
    const pairs = [
      ["step", s.steps ? `${count(s.step)} of ${count(s.steps)}` : count(s.step)], ["samples/s", count(Math.round(s.samples_per_s ?? 0))],
      s.tokens_per_s ? ["tokens/s", count(Math.round(s.tokens_per_s))] : null,
      ["waited", percent(s.waited ?? 0)], ["memory", bytes(s.resident_bytes ?? 0)], ["ranks", count(s.ranks)], ["errors", count(s.errors ?? 0)],
      ["restarts", count(restarts)],
    ].filter(Boolean);
    facts.replaceChildren(...pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    warnings.replaceChildren(s.warnings?.length ? h("ul", { className: "warnings" }, s.warnings.map((w) => h("li", {}, h("bdi", {}, String(w))))) : h("p", { className: "dim" }, "Warnings: none"));
    for (const chart of charts) chart.destroy();
    const history = answer.history, times = history.map((r) => r.time);
    for (const holder of [speed, waiting, memory]) holder.replaceChildren();
    charts = times.length ? [
      drawLines(speed, times, [{ label: "samples/s", values: history.map((r) => r.samples_per_s ?? null) }], { time: true }),
      drawLines(waiting, times, [{ label: "waited", values: history.map((r) => r.waited ?? null) }], { time: true, format: (v) => `${(100 * v).toFixed(v < 0.1 ? 1 : 0)}%` }),
      drawLines(memory, times, [{ label: "memory", values: history.map((r) => r.resident) }], { time: true, format: bytes }),
    ] : [];
    const planned = answer.planned ?? {};
    const names = Object.keys(s.shares ?? {}).sort((a, b) => s.shares[b] - s.shares[a]);
    const rows = names.slice(0, 40).map((n) => h("tr", {}, h("th", { scope: "row" }, h("span", { className: "swatch", style: { background: colorOf(n) } }), h("bdi", {}, n)), cell(count(s.samples?.[n]), "number"), cell(percent(s.shares[n]), "number"), cell(percent(planned[n]), "number")));
    shares.replaceChildren(table([{ title: "source" }, { title: "samples", className: "number" }, { title: "share", className: "number" }, { title: "planned", className: "number" }], rows, { label: "Shares of samples" }), names.length > 40 ? h("p", { className: "dim" }, `and ${count(names.length - 40)} more`) : "");
    const parts = (s.work ?? s.time ?? []);
    const list = Array.isArray(parts) ? parts : [];
    work.replaceChildren(...(list.length ? [h("h2", {}, "Work by step"), table([{ title: "step" }, { title: "source" }, { title: "items", className: "number" }, { title: "seconds", className: "number" }], list.map((r) => h("tr", {}, cell(h("bdi", {}, String(r.step))), cell(h("bdi", {}, String(r.source ?? ""))), cell(count(r.items), "number"), cell(fixed(r.seconds), "number"))), { label: "Work by step" })] : []));
  }
  async function poll() {
    draw(await get("live"));
    if (isOpen && overview.has_stats) timer = setTimeout(() => poll().catch(retry), PERIOD);
  }
  function retry(error) {
    report(error);
    if (isOpen) timer = setTimeout(() => poll().catch(retry), 2 * PERIOD);
  }
  return { ready: poll(), update() {}, close() { isOpen = false; clearTimeout(timer); for (const chart of charts) chart.destroy(); } };
}
