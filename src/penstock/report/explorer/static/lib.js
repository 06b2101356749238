// Elements, requests, and the state in the hash of the URL.

const token = new URLSearchParams(location.search).get("token") ?? "";

/** Make an element. Texts become text nodes: data is never parsed as HTML. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else if (name in element && name !== "list" && name !== "role") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export class RequestError extends Error {}

async function receive(response) {
  let answer = null;
  try { answer = await response.json(); } catch { /* an error of the server, as text */ }
  if (!response.ok) throw new RequestError(answer?.error ?? `the server answered ${response.status}`);
  return answer;
}

export function encode(parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "") query.append(name, item);
    }
  }
  return query;
}

export async function get(name, parameters = {}, signal) {
  const response = await fetch(`api/${name}?${encode(parameters)}`, { headers: { "X-Penstock-Token": token }, signal });
  return receive(response);
}

export async function post(name, data, signal) {
  const headers = { "X-Penstock-Token": token, "Content-Type": "application/json" };
  return receive(await fetch(`api/${name}`, { method: "POST", headers, body: JSON.stringify(data), signal }));
}

export function mediaUrl(source, index, fields) {
  return `media?${encode({ source, index, field: fields, token })}`;
}

// ---------------------------------------------------------------- hash

/** The view and its parameters, from `#view?name=value`. */
export function readHash() {
  const [view, query] = location.hash.slice(1).split("?");
  return { view: view || "timeline", query: new URLSearchParams(query ?? "") };
}

export function hashOf(view, parameters) {
  const query = encode(parameters).toString();
  return `#${view}${query ? `?${query}` : ""}`;
}

export function goTo(view, parameters, replace = false) {
  const hash = hashOf(view, parameters);
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else location.hash = hash;
}

// ---------------------------------------------------------------- texts

const whole = new Intl.NumberFormat("en-US");
export const count = (n) => (n === null || n === undefined ? "" : whole.format(n));
export const percent = (x) => (x === null || x === undefined ? "" : `${(100 * x).toFixed(2)}%`);
export const fixed = (x) => (x === null || x === undefined ? "" : x >= 1000 ? count(Math.round(x)) : x.toFixed(2));

export function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

export function say(text) {
  document.getElementById("status").textContent = text;
}

/** Parse a number that a person typed, such as `1,000,000` or `1e6`. */
export function parseCount(text) {
  const number = Math.floor(Number(String(text).replaceAll(/[,_\s]/g, "")));
  return Number.isFinite(number) && number >= 0 ? number : null;
}

export function debounce(call, milliseconds) {
  let timer = null;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}

/** A colour for each name, the same one in all views. */
const colors = new Map();
export function colorOf(name) {
  if (!colors.has(name)) colors.set(name, colors.size % 12);
  return `var(--c${colors.get(name)})`;
}
export function resolveColor(name, kind) {
  const style = getComputedStyle(document.documentElement);
  if (kind === "rest") return style.getPropertyValue("--rest").trim();
  colorOf(name);
  return style.getPropertyValue(`--c${colors.get(name)}`).trim();
}

export function table(columns, rows, properties = {}) {
  return h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": properties.label },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col", className: c.className ?? "" }, c.title)))),
      h("tbody", {}, rows)));
}
export const cell = (text, className = "") => h("td", { className }, text);
