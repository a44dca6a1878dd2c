// The API as /openapi.json tells it: each route with its fields, and a form that asks it.
// Law: what the server says is written as text, never as markup; nothing comes from another host.

const MOST_SHOWN = 1 << 18; // characters of an answer

let key = sessionStorage.getItem("pellucid-key") ?? "";
let spec;

document.documentElement.dataset.theme = localStorage.getItem("pellucid-theme") ?? "";

/** An element with properties and children. */
function make(name, props = {}, ...children) {
  const node = Object.assign(document.createElement(name), props);
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}

function headers(more = {}) {
  return key ? { authorization: `Bearer ${key}`, ...more } : more;
}

/** The schema that a reference means, and its name. */
function named(schema) {
  const name = schema.$ref?.split("/").pop() ?? "";
  return { name, schema: name ? spec.components.schemas[name] : schema };
}

/** Kinds that a schema allows; null is the default everywhere and is not told. */
function kinds(schema) {
  return (schema.anyOf ?? schema.oneOf ?? [schema]).flatMap((one) => (one.anyOf || one.oneOf ? kinds(one) : [one])).filter((one) => one.type !== "null");
}

function bounds(schema) {
  const parts = [];
  for (const [name, sign] of [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"]]) {
    if (name in schema && Math.abs(schema[name]) < 2 ** 31) parts.push(`${sign} ${schema[name]}`);
  }
  for (const [name, text] of [["minItems", "at least"], ["maxItems", "at most"], ["minLength", "at least"], ["maxLength", "at most"]]) {
    if (name in schema) parts.push(`${text} ${schema[name]}`);
  }
  return parts.length ? ` (${parts.join(", ")})` : "";
}

/** What a value may be: words, and for an object its fields, folded. */
function type(schema) {
  const box = make("span");
  kinds(schema).forEach((kind, i) => {
    if (i) box.append(" or ");
    const found = named(kind);
    const inner = found.schema.type === "array" ? found.schema.items : null;
    const object = named(inner ?? kind);
    if (object.schema?.properties) box.append(folded((inner ? "list of " : "") + (object.name || "object"), object.schema));
    else if (inner) box.append("list of ", type(inner), bounds(found.schema));
    else if (found.schema.enum) box.append(found.schema.enum.map((one) => JSON.stringify(one)).join(" | "));
    else if ("const" in found.schema) box.append(JSON.stringify(found.schema.const));
    else box.append((found.schema.type ?? "any") + bounds(found.schema));
  });
  return box;
}

/** The fields of an object, written when they are first looked at: schemas may hold themselves. */
function folded(name, schema) {
  const details = make("details", {}, make("summary", { className: "type" }, name));
  details.addEventListener("toggle", () => details.children.length === 1 && details.append(fields(schema)), { once: true });
  return details;
}

function row(name, schema, required, about) {
  const fallback = schema.default === undefined || schema.default === null ? "" : JSON.stringify(schema.default);
  const marked = make("td", {}, make("code", {}, name), required ? make("span", { className: "required", title: "required" }, " *") : "");
  return make("tr", {}, marked, make("td", {}, type(schema)), make("td", {}, make("code", {}, fallback)), make("td", {}, about ?? ""));
}

function table(rows) {
  const head = make("tr", {}, ...["field", "type", "default", ""].map((text) => make("th", {}, text)));
  return make("div", { className: "fields" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function fields(schema) {
  if (!Object.keys(schema.properties ?? {}).length) return make("div", { className: "about" }, "no fields");
  const required = new Set(schema.required ?? []);
  const order = Object.entries(schema.properties).sort(([a], [b]) => required.has(b) - required.has(a));
  return table(order.map(([name, field]) => row(name, field, required.has(name), field.description)));
}

/** A value that a schema allows, short, for the form. */
function sample(schema, name = "") {
  if (name === "messages") return [{ role: "user", content: "Hello!" }];
  if (["prompt", "input", "content"].includes(name)) return "Hello!";
  const kind = named(kinds(schema)[0] ?? {}).schema;
  if (kind.properties) return Object.fromEntries((kind.required ?? []).map((one) => [one, sample(kind.properties[one], one)]));
  if (kind.enum) return kind.enum[0];
  if ("const" in kind) return kind.const;
  return { array: [], integer: kind.minimum ?? 0, number: kind.minimum ?? 0, boolean: false, string: "", object: {} }[kind.type] ?? null;
}

function body(schema) {
  const value = sample(schema);
  const { properties = {} } = named(schema).schema;
  for (const name of ["max_tokens", "max_output_tokens"]) if (name in properties) value[name] = 32;
  return JSON.stringify(value, null, 2);
}

/** A form that sends a request and shows what comes, as it comes. */
function form(method, path, schema) {
  const where = make("input", { value: path, ariaLabel: `Path of ${method} ${path}`, spellcheck: false });
  const send = make("button", { type: "button" }, "Send");
  const text = schema && body(schema);
  const what = schema && make("textarea", { value: text, rows: text.split("\n").length, ariaLabel: `Body of ${method} ${path}`, spellcheck: false });
  const out = make("pre", { hidden: true });
  out.setAttribute("aria-live", "polite");
  send.addEventListener("click", async () => {
    send.disabled = true;
    out.hidden = false;
    out.textContent = "…";
    try {
      const answer = await fetch(new URL(where.value, location.origin), {
        method, headers: headers(what ? { "content-type": "application/json" } : {}), body: what?.value,
      });
      await show(answer, out);
    } catch (error) {
      out.textContent = `The server does not answer: ${error.message}`;
    }
    send.disabled = false;
  });
  return make("div", {}, make("h3", {}, "Ask"), make("div", { className: "try" }, where, send), what ?? "", out);
}

async function show(answer, out) {
  const head = `${answer.status} ${answer.statusText}\n\n`;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += value;
    out.textContent = head + text.slice(-MOST_SHOWN);
    if (text.length > MOST_SHOWN) {
      await reader.cancel();
      out.textContent += "\n… and more";
      return;
    }
  }
  if (answer.headers.get("content-type")?.startsWith("application/json")) text = JSON.stringify(JSON.parse(text), null, 2);
  out.textContent = head + text;
}

function route(method, path, operation) {
  const details = make("details", { className: "route" }, make("summary", {},
    make("span", { className: `method ${method}` }, method.toUpperCase()),
    make("span", { className: "path" }, path), make("span", { className: "about" }, operation.description ?? "")));
  details.addEventListener("toggle", () => {
    const box = make("div");
    const asked = operation.requestBody?.content["application/json"]?.schema;
    const params = operation.parameters ?? [];
    if (params.length) box.append(make("h3", {}, "Parameters"), table(params.map((one) => row(one.name, one.schema, one.required, one.description ?? `in the ${one.in}`))));
    if (asked) box.append(make("h3", {}, "Body"), fields(named(asked).schema));
    box.append(form(method.toUpperCase(), path, asked));
    for (const [status, text] of [["200", "Answer"], ["default", "Error"]]) {
      const schema = operation.responses[status]?.content?.["application/json"]?.schema;
      if (schema && kinds(schema).some((kind) => named(kind).name)) box.append(make("h3", {}, text), type(schema));
    }
    details.append(box);
  }, { once: true });
  details.dataset.text = `${method} ${path} ${operation.description ?? ""} ${words(operation)}`.toLowerCase();
  return details;
}

/** Names of the fields of a request, for the filter. */
function words(operation) {
  const asked = operation.requestBody?.content["application/json"]?.schema;
  const names = asked ? Object.keys(named(asked).schema.properties ?? {}) : [];
  return [...names, ...(operation.parameters ?? []).map((one) => one.name)].join(" ");
}

function write() {
  document.getElementById("version").textContent = spec.info.version;
  const groups = new Map();
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "";
      if (!groups.has(tag)) groups.set(tag, make("section", {}, make("h2", {}, tag)));
      groups.get(tag).append(route(method, path, operation));
    }
  }
  document.getElementById("routes").replaceChildren(...groups.values());
  sift();
}

function sift() {
  const wanted = document.getElementById("filter").value.toLowerCase().trim();
  for (const section of document.querySelectorAll("#routes section")) {
    let shown = 0;
    for (const one of section.querySelectorAll(":scope > .route")) {
      one.hidden = !one.dataset.text.includes(wanted);
      shown += !one.hidden;
    }
    section.hidden = !shown;
  }
}

async function load() {
  const asking = document.getElementById("key");
  const alert = asking.querySelector("[role=alert]");
  alert.textContent = "";
  try {
    const answer = await fetch("/openapi.json", { headers: headers() });
    asking.hidden = answer.status !== 401;
    if (!answer.ok) {
      alert.textContent = key ? (await answer.json()).error.message : "";
      return;
    }
    if (key) sessionStorage.setItem("pellucid-key", key);
    spec = await answer.json();
    write();
  } catch (error) {
    document.getElementById("routes").textContent = `The server does not answer: ${error.message}`;
  }
}

document.getElementById("filter").addEventListener("input", sift);
document.getElementById("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = event.target.querySelector("input").value.trim();
  load();
});
load();
