// Blocks of data: found in the page, decoded when a view asks for them.
(function () {
  "use strict";
  const R = window.report;
  const decoded = new Map();

  R.has = (name) => document.getElementById("data-" + name) !== null;

  function fromBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    return bytes;
  }

  async function decode(name) {
    const block = document.getElementById("data-" + name);
    if (block === null) return null;
    const bytes = fromBase64(block.textContent.trim());
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const response = new Response(stream);
    if (name === "library") return response.text();
    if (name.startsWith("heat-")) return new Int16Array(await response.arrayBuffer());
    return JSON.parse(await response.text());
  }

  /** Return the promise of a block: parsed JSON, an Int16Array of heat-…, null where none is. */
  R.block = function (name) {
    if (!decoded.has(name)) decoded.set(name, decode(name));
    return decoded.get(name);
  };

  R.placeBlock = (step, rank) => R.block(`place-${step}-${rank}`);

  let library = null;
  /** Return the promise of the chart library, null where the page has none. */
  R.charts = function () {
    library = library || R.block("library").then((text) => {
      if (text === null) return null;
      const script = document.createElement("script");
      script.nonce = R.nonce;
      script.textContent = text;
      document.head.append(script);
      decoded.delete("library");
      window.Bokeh.set_log_level("warn");
      return window.Bokeh;
    });
    return library;
  };
})();
