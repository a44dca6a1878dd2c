import { describe, expect, it } from "vitest";
import { events } from "../src/lib/api";
import { cividis, ink, puor, TABLE } from "../src/lib/colour";
import { cursorOf, hashOf } from "../src/lib/cursor";
import { inflate, length, Weights } from "../src/lib/report";
import { bytes, percent, seconds, shown } from "../src/lib/text";
import { levelOf, showing, tilesIn, whole, within, zoomed } from "../src/lib/pyramid";
import { heaviest, orbit, withoutSink } from "../src/lib/weights";

describe("cursor", () => {
  it("comes back from its URL", () => {
    const cursor = { view: "attention" as const, id: "trace-0a1b", pos: 7, layer: 3, head: 2, form: "orbit" as const };
    expect(cursorOf(hashOf(cursor))).toEqual(cursor);
  });
  it("takes nothing that it does not know", () => {
    const cursor = cursorOf("#/nowhere?id=<script>&pos=-3&layer=1e99&head=x&form=cube");
    expect(cursor).toEqual({ view: "request", id: "", pos: 0, layer: 0, head: 0, form: "matrix" });
  });
});

describe("weights", () => {
  it("of an orbit add to one", () => {
    const weights = [0.3, 0.05, 0.2, 0.25, 0.1];
    const found = orbit(weights, 3, 0.1);
    expect(found.parts.map((p) => p.pos)).toEqual([0, 2, 3]);
    expect(found.restCount).toBe(2);
    expect(found.parts.reduce((a, p) => a + p.weight, found.rest + found.sink)).toBeCloseTo(1, 12);
  });
  it("without the sink add to one, and keep their order", () => {
    expect(withoutSink([0.5, 0.125, 0.375])).toEqual([0, 0.25, 0.75]);
    expect(withoutSink([1])).toEqual([0]);
  });
  it("have their heaviest, the first of equals first", () => {
    expect(heaviest([0.1, 0.4, 0.1, 0.4, 0], 3)).toEqual([[1, 0.4], [3, 0.4], [0, 0.1]]);
    expect(heaviest([1], 3)).toEqual([[0, 1]]);
  });
});

describe("a large matrix", () => {
  it("is tiled at the level at which a cell is not smaller than a pixel", () => {
    expect([whole(8192, 512).scale, whole(6, 560).scale, whole(300, 560).scale].map(levelOf)).toEqual([4, 0, 0]);
    expect(tilesIn(whole(8192, 512), 8192, 512)).toEqual([{ z: 4, x: 0, y: 0 }, { z: 4, x: 0, y: 1 }, { z: 4, x: 1, y: 1 }]);
  });
  it("is zoomed around a pixel, which stays where it is", () => {
    const from = whole(8192, 512), to = zoomed(from, 8192, 512, 8, 300, 400);
    expect([to.left + 300 / to.scale, to.top + 400 / to.scale]).toEqual([300 / from.scale, 400 / from.scale]);
    expect(zoomed(to, 8192, 512, 1 / 8, 300, 400)).toEqual(from);
    expect(zoomed(from, 8192, 512, 1e9, 0, 0).scale).toBe(28);
  });
  it("shows nothing beyond its edges, and asks for no tile beyond them or above the diagonal", () => {
    const w = within({ left: 9000, top: -4, scale: 1 }, 8192, 512);
    expect(w).toEqual({ left: 7680, top: 0, scale: 1 });
    expect(tilesIn(w, 8192, 512)).toEqual([]);
    expect(tilesIn({ left: 7680, top: 7680, scale: 1 }, 8192, 512)).toEqual([{ z: 0, x: 30, y: 30 }, { z: 0, x: 30, y: 31 }, { z: 0, x: 31, y: 31 }]);
  });
  it("follows the cursor", () => {
    const w = { left: 0, top: 0, scale: 1 };
    expect(showing(w, 8192, 512, 511)).toBe(w);
    expect(showing(w, 8192, 512, 4000)).toEqual({ left: 3744, top: 3744, scale: 1 });
  });
});

describe("colour", () => {
  it("has its ends and its middle where they belong", () => {
    expect(cividis(0)).toEqual([0, 34, 78]);
    expect(cividis(7)).toEqual(cividis(1));
    expect(puor(0)).toEqual([247, 247, 247]);
    expect(cividis(NaN)).toEqual(cividis(0));
    expect([...TABLE.slice(0, 4)]).toEqual([0, 34, 78, 255]);
  });
  it("is written on so that it can be read (4.5 : 1)", () => {
    const light = (c: number[]) => c.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4)).reduce((a, v, i) => a + v * [0.2126, 0.7152, 0.0722][i], 0);
    for (let t = 0; t <= 1; t += 0.01) {
      const l = light(cividis(t)), on = ink(cividis(t)) === "#000" ? 0 : 1;
      expect((Math.max(l, on) + 0.05) / (Math.min(l, on) + 0.05)).toBeGreaterThanOrEqual(4.5);
    }
  });
});

describe("text", () => {
  it("never says 0 % of what is not 0, nor 100 % of what is not 1", () => {
    expect([percent(0), percent(1e-9), percent(0.99996), percent(1), percent(0.5)]).toEqual(["0.0 %", "< 0.1 %", "99.9+ %", "100 %", "50.0 %"]);
  });
  it("shows blanks", () => expect(shown(" a\n\u0000")).toBe("␣a⏎·"));
  it("has units", () => expect([bytes(1536), bytes(5), seconds(0.25), seconds(2)]).toEqual(["1.5 KiB", "5 B", "250 ms", "2.00 s"]));
});

describe("events", () => {
  it("are whole however the stream is cut", async () => {
    const text = 'event: step\nid: 4\ndata: {"a":\ndata: 1}\n\n: a comment\n\ndata: ü [DONE]\n\n';
    const bytes = new TextEncoder().encode(text);
    for (const size of [1, 3, 7, 1000]) {
      const body = new ReadableStream<Uint8Array>({ start(c) { for (let i = 0; i < bytes.length; i += size) c.enqueue(bytes.slice(i, i + size)); c.close(); } });
      const found = [];
      for await (const e of events(new Response(body))) found.push(e);
      expect(found).toEqual([{ event: "step", id: "4", data: '{"a":\n1}' }, { event: "message", id: "", data: "ü [DONE]" }]);
    }
  });
});

describe("a report", () => {
  // Rows of 3 tokens, from the second: greatest weights, sinks, high bytes, low bytes (probes/packed.py).
  const rows = [[0.25, 0.75], [0.5, 0.125, 0.25]], levels = rows.flatMap((r) => r.map((w) => Math.round((w / Math.max(...r)) * 65535)));
  const floats = new Uint8Array(new Float32Array([0.75, 0.5, 0, 0.125]).buffer);
  const data = new Uint8Array([...floats, ...levels.map((v) => v >> 8), ...levels.map((v) => v & 255)]);
  const weights = new Weights(data, 1, length(data, 1));
  it("gives the rows of a head", () => {
    expect(weights.n).toBe(3);
    weights.row(2).forEach((w, i) => expect(w).toBeCloseTo(rows[1][i], 5));
    expect([weights.sink(1), weights.sink(2)]).toEqual([0, 0.125]);
  });
  it("gives tiles whose cells are the greatest of theirs; rows that it has not are empty", async () => {
    const tile = weights.tile(1, 0, 0), cells = new Uint8Array(await tile.arrayBuffer());
    expect([tile.headers.get("x-rows"), tile.headers.get("x-columns"), Number(tile.headers.get("x-scale"))]).toEqual(["2", "2", 0.75]);
    expect([...cells]).toEqual([255, 0, 170, 85]);
  });
  it("inflates what was packed", async () => {
    expect(new TextDecoder().decode((await inflate("H4sIAAAAAAAC/8tIzcnJBwCGphA2BQAAAA=="))!)).toBe("hello");
    expect(await inflate(null)).toBeNull();
  });
});
