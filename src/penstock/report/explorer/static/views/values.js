// Values of samples as elements: texts, fields, media, tokens.

import { bytes, count, h, mediaUrl } from "../lib.js";

/** Return an element for a described value. `more(start)` loads the next window of long texts. */
export function showValue(value, sample, path = [], more = null) {
  if (value.kind === "text") {
    const end = value.start + value.text.length, parts = [h("pre", { dir: "auto" }, value.text)];
    if (value.size > value.text.length) {
      parts.push(h("p", { className: "dim" }, `characters ${count(value.start)} to ${count(end)} of ${count(value.size)} `,
        more && value.start > 0 ? h("button", { type: "button", onclick: () => more(Math.max(0, value.start - 4000)) }, "Before") : null,
        more && end < value.size ? h("button", { type: "button", onclick: () => more(end) }, "Next") : null));
    }
    return h("div", {}, parts);
  }
  if (value.kind === "fields") {
    const items = value.items.map(([name, item]) => [h("dt", {}, h("bdi", {}, name)), h("dd", {}, showValue(item, sample, [...path, name], more))]);
    const rest = value.size - value.items.length;
    return h("div", {}, h("dl", {}, items), rest > 0 ? h("p", { className: "dim" }, `and ${count(rest)} more`) : null);
  }
  if (value.kind === "bytes" && value.media) return showMedia(value, sample, path);
  return h("code", {}, h("bdi", {}, value.shown));
}

function showMedia(value, sample, path) {
  const url = mediaUrl(sample.source, sample.index, path);
  const caption = h("figcaption", {}, `${value.shown.slice(1, -1)}`);
  const fail = () => figure.replaceChildren(h("p", { className: "error" }, `This ${value.media} of ${bytes(value.size)} cannot be decoded.`), caption);
  const name = `${path.at(-1) ?? "medium"} of ${sample.source} ${sample.index}`;
  let medium;
  if (value.media.startsWith("image/")) medium = h("img", { src: url, alt: name, loading: "lazy", onerror: fail });
  else if (value.media.startsWith("audio/")) medium = h("audio", { src: url, controls: true, preload: "metadata", "aria-label": name, onerror: fail });
  else medium = h("video", { src: url, controls: true, preload: "metadata", "aria-label": name, onerror: fail });
  const figure = h("figure", {}, medium, caption);
  return figure;
}

/** Return the documents of a row with learned tokens in colour. */
export function showTokens(answer) {
  if (!answer.documents.length) return h("p", { className: "dim" }, "The row holds no tokens.");
  return h("div", {},
    h("p", { className: "dim" }, h("span", { className: "learned" }, "learned"), " tokens carry loss",
      answer.has_texts ? "." : "; the mixture names no tokenizer, so ids are shown."),
    answer.documents.map((document, number) => {
      const title = [document.name || `document ${number + 1}`, `${count(document.size)} tokens`,
        document.learned === null ? "no loss mask" : `${count(document.learned)} learned`].join(", ");
      const separator = answer.has_texts ? "" : " ";
      const tokens = document.texts.map((text, i) => h("span", {
        className: document.mask?.[i] ? "learned token" : "token", title: String(document.ids[i]) }, text + separator));
      const rest = document.size - document.texts.length;
      return h("section", {}, h("h3", {}, title), h("p", { className: "tokens", dir: "auto" }, tokens, rest > 0 ? ` … ${count(rest)} more` : null));
    }));
}
