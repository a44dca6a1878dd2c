/**
 * A report: the answers that were recorded into this page (probes/report.py). Law: where there is one, everything is
 * answered from it and nothing is asked of a network; what is not in it gets an error that says so, as from a server.
 */

export interface Report {
  version: string; created: string; params: Record<string, unknown>;
  /** Seconds at which each token of the answer was drawn. */
  arrivals: number[];
  /** Tokens and heads that are in it, and the first query of the heads. */
  places: number[]; heads: [layer: number, head: number][]; first: number;
  /** A sentence for each thing that is not. */
  left_out: string[];
}

const element = (id: string): string | null => (typeof document === "undefined" ? null : (document.getElementById(id)?.textContent ?? null));
const facts = element("report");
export const report: Report | null = facts === null ? null : JSON.parse(facts);
/** Of the trace, in paths. */
export const ID = "report";

const opened = new Map<string, Promise<Uint8Array | null>>();

/** Bytes of a block; null: there is no such block. */
function block(id: string): Promise<Uint8Array | null> {
  if (!opened.has(id)) opened.set(id, inflate(element(id)));
  return opened.get(id)!;
}

export async function inflate(base64: string | null): Promise<Uint8Array | null> {
  if (base64 === null) return null;
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

const failed = (status: number, message: string) => Response.json({ error: { message } }, { status });

/** What the server would have answered. */
export async function recorded(path: string, method = "GET"): Promise<Response> {
  const url = new URL(path, "http://report"), number = (name: string) => Number(url.searchParams.get(name) ?? 0);
  if (method !== "GET" || url.pathname === "/inspect/engine/events") return failed(501, "This is a recorded report; only a live engine can do that.");
  try {
    if (/\/attn\/(row|tile)$/.test(url.pathname)) {
      const [layer, head] = [number("layer"), number("head")], data = await block(`head-${layer}-${head}`);
      if (!data) return failed(404, missing(layer, head));
      const weights = new Weights(data, report!.first, length(data, report!.first));
      if (url.pathname.endsWith("/tile")) return weights.tile(number("z"), number("x"), number("y"));
      const pos = number("pos");
      if (pos < weights.first) return failed(404, `This report has the queries of its heads from token ${weights.first} on.`);
      return Response.json({ pos, layer, head, weights: weights.row(pos), sink: weights.sink(pos) });
    }
    const pos = url.searchParams.get("pos"), data = await block(pos === null ? "answers" : `token-${pos}`);
    const found = data && JSON.parse(new TextDecoder().decode(data))[path];
    if (found === undefined || found === null) return failed(404, pos === null ? "This is not in the report." : `Token ${pos} is not in this report, only what it was worth: ${report!.places.length} tokens were looked into.`);
    return Response.json(found, { status: found.error ? 400 : 200 });
  } catch (error) {
    return failed(500, typeof DecompressionStream === "undefined" ? "This browser is too old for reports: it cannot inflate them." : `The report is damaged: ${error instanceof Error ? error.message : error}`);
  }
}

function missing(layer: number, head: number): string {
  const heads = report!.heads.filter(([l]) => l === layer).map(([, h]) => h);
  return `Head ${layer}.${head} is not in this report; of layer ${layer} it has ${heads.length ? `${heads.length > 1 ? "heads" : "head"} ${heads.join(", ")}` : "none"}.`;
}

const triangle = (n: number) => (n * (n + 1)) / 2;

/** Tokens of a block of weights: it has 8 bytes a row and 2 a weight. */
export function length(data: Uint8Array, first: number): number {
  let n = first, size = 0;
  while (size < data.length) { n++; size += 8 + 2 * n; }
  return n;
}

/** The weights of a head, as probes/packed.py packs them. */
export class Weights {
  readonly view: DataView;
  readonly cells: number;
  constructor(readonly data: Uint8Array, readonly first: number, readonly n: number) {
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.cells = triangle(n) - triangle(first);
  }
  scale(pos: number): number { return this.view.getFloat32(4 * (pos - this.first), true); }
  sink(pos: number): number { return this.view.getFloat32(4 * (this.n - this.first + pos - this.first), true); }
  row(pos: number): number[] {
    const high = 8 * (this.n - this.first) + triangle(pos) - triangle(this.first), by = this.scale(pos) / 65535;
    return Array.from({ length: pos + 1 }, (_, i) => by * (256 * this.data[high + i] + this.data[high + this.cells + i]));
  }
  /** A tile of 256 cells a side, a byte each; a cell is the greatest of 2^z by 2^z weights. */
  tile(z: number, x: number, y: number): Response {
    const side = 2 ** z, across = Math.ceil(this.n / side), rows = Math.min(256, across - 256 * y), columns = Math.min(256, across - 256 * x);
    const most = new Float64Array(rows * columns);
    for (let pos = Math.max(256 * y * side, this.first); pos < Math.min(this.n, (256 * y + rows) * side); pos++)
      this.row(pos).forEach((w, key) => {
        const column = Math.floor(key / side) - 256 * x, at = (Math.floor(pos / side) - 256 * y) * columns + column;
        if (column >= 0 && column < columns && w > most[at]) most[at] = w;
      });
    const scale = most.reduce((a, b) => Math.max(a, b), 0) || 1;
    return new Response(Uint8Array.from(most, (w) => Math.round((w / scale) * 255)), { headers: { "x-rows": String(rows), "x-columns": String(columns), "x-scale": String(scale) } });
  }
}
