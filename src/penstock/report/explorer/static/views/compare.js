// Compare: settings, the first step that differs, and shares over time of two plans.

import { report } from "../app.js";
import { drawShares } from "../charts.js";
import { colorOf, count, get, goTo, h, hashOf } from "../lib.js";
import { fetchTimeline } from "./timeline.js";

export function open({ content, query }) {
  let abort = new AbortController(), charts = [], plans = [];
  const base = h("select", { id: "base" }), other = h("select", { id: "other" }), answer = h("div");
  const change = () => goTo("compare", { of: base.value, with: other.value });
  base.addEventListener("change", change);
  other.addEventListener("change", change);
  content.append(h("div", { className: "bar" }, h("label", { htmlFor: "base" }, "Compare"), base, h("label", { htmlFor: "other" }, "with"), other), answer);

  async function update(q) {
    abort.abort();
    abort = new AbortController();
    const { signal } = abort;
    for (const chart of charts) chart.destroy();
    charts = [];
    plans = (await get("overview", {}, signal)).plans;
    const options = () => plans.map((p) => h("option", { value: p.name }, p.title));
    base.replaceChildren(...options());
    other.replaceChildren(...options());
    base.value = q.get("of") ?? "main";
    other.value = q.get("with") ?? (plans.find((p) => p.name !== "main")?.name ?? "main");
    if (plans.length < 2) {
      answer.replaceChildren(h("p", {}, "There is one plan only. Change it under What if, or start the explorer with ", h("code", {}, "--compare OTHER.yaml"), " or ", h("code", {}, "--state FOLDER"), "."));
      return;
    }
    const first = h("p", { role: "status" }, "Comparing ..."), settings = h("div");
    const pictures = [base.value, other.value].map((name) => ({ name, title: plans.find((p) => p.name === name)?.title ?? name, holder: h("div", { className: "chart", role: "img", "aria-label": `Shares of ${name}` }) }));
    answer.replaceChildren(h("h2", {}, "First difference"), first, h("h2", {}, "Settings"), settings,
      h("h2", {}, "Shares over the run"), ...pictures.flatMap((p) => [h("h3", {}, h("bdi", {}, p.title)), p.holder]), h("div", { id: "bands" }));
    const names = { of: base.value, with: other.value };
    let part = await get("compare", names, signal);
    settings.replaceChildren(part.settings.length ? h("ul", {}, part.settings.map((line) => h("li", {}, h("bdi", {}, line)))) : h("p", { className: "dim" }, "The same settings."));
    const ends = part.ends;
    const stop = Math.max(...ends);
    const legend = new Map();
    const searching = (async () => {
      while (part.next !== null) {
        first.textContent = `The same samples up to ${part.unit} ${count(part.compared)} ...`;
        part = await get("compare", { ...names, row: part.next }, signal);
      }
      const length = ends[0] === ends[1] ? "" : ` One run ends after ${count(ends[0])} ${part.unit}s, the other after ${count(ends[1])}.`;
      if (part.first === null) first.textContent = `The same samples in all ${count(part.compared)} ${part.unit}s.${length}`;
      else first.replaceChildren(`Other samples from ${part.unit} `, h("a", { href: hashOf("step", { step: part.first }) }, count(part.first)), ` on: ${keys(part.here)} before, ${keys(part.there)} after.${length}`);
    })();
    for (const picture of pictures) {
      await fetchTimeline({ of: picture.name, first: 0, stop, points: 48, bands: 11 }, (timeline) => {
        picture.chart?.destroy();
        picture.holder.replaceChildren();
        for (const band of timeline.bands) legend.set(band.name, band.kind === "rest" ? "var(--rest)" : colorOf(band.name));
        picture.chart = drawShares(picture.holder, timeline, { height: 220 });
        charts.push(picture.chart);
        answer.querySelector("#bands").replaceChildren(h("ul", { className: "legend" }, [...legend].map(([name, color]) => h("li", {}, h("span", { className: "swatch", style: { background: color } }), h("bdi", {}, name)))));
      }, signal);
    }
    await searching;
  }
  const keys = (list) => list.slice(0, 3).map(([source, , index]) => `${source}[${count(index)}]`).join(", ") + (list.length > 3 ? ", ..." : "");
  return { ready: update(query), update: (q) => update(q).catch(report), close() { abort.abort(); for (const chart of charts) chart.destroy(); } };
}
