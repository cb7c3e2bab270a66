// A heat map of rows that open: names as elements, cells on a canvas, one window of it drawn.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;

  /**
   * Make a heat map. `model`: rows [{name, title, note, depth, open: true|false|null,
   * code(column), origin(column)}], columns [{label, title}], scale (R.scaleOf), none (the code of no value),
   * scaleNow() and legendNow(scale) in the colours of paper, tall (labels of columns upright), picked {row, column}; calls: told(row, column) → text,
   * pick(row, column), toggle(row), moved(row, column).
   */
  R.heatMap = function (box, model) {
    const ratio = window.devicePixelRatio || 1;
    const letter = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const tallRow = Math.round(1.45 * letter);
    const labels = Math.round(Math.min(34 * letter, Math.max(210, box.clientWidth * 0.34)));
    const room = Math.max(120, box.clientWidth - labels - 26);
    const wide = model.tall ? 5 * letter : 3 * letter;
    const share = room / Math.max(model.columns.length, 1);
    const width = Math.min(wide, Math.max(3, share > 8 ? Math.floor(share) : share));
    const total = Math.ceil(width * model.columns.length);
    const high = Math.max(240, Math.round(window.innerHeight * 0.68));
    const fit = model.fit && model.rows.length * tallRow > high;
    const row = fit ? Math.max(2, Math.floor(high / model.rows.length)) : tallRow;
    const height = Math.min(high, row * model.rows.length);
    let cursor = { row: 0, column: 0, ...model.picked };
    let hover = null;

    const canvas = el("canvas", { class: "cells", "aria-hidden": "true" });
    const names = el("div", { class: "names" });
    const body = el("div", { class: "body", style: {
      height: row * model.rows.length + "px", width: labels + total + "px",
    } }, names, canvas);
    const head = el("div", { class: "heads" + (model.tall ? " tall" : ""), style: {
      width: labels + total + "px",
    } });
    const scroll = el("div", { class: "scroll", style: { height: height + 2 + "px" } }, body);
    const told = el("p", { class: "told", role: "status" });
    const tip = el("div", { class: "tip", "aria-hidden": "true" });
    const across = el("div", { class: "across" }, head, scroll);
    const frame = el("div", {
      class: "heat", tabindex: "0", role: "application", "data-heat": true,
      "aria-roledescription": R.w("heat"), "aria-label": R.w("heat_told", {
        rows: model.rows.length, columns: model.columns.length,
      }),
    }, across);
    R.clear(box, frame, tip, told);
    if (model.tall) {
      const longest = Math.max(0, ...model.columns.map((column) => column.label.length));
      head.style.height = `${Math.min(15, 1 + 0.47 * longest)}rem`;
    }

    const every = model.tall ? 1 : Math.max(1, Math.ceil(30 / width));
    model.columns.forEach((column, i) => {
      if (i % every) return;
      head.append(el("span", {
        class: "head" + (model.picked && model.picked.column === i ? " picked" : ""),
        title: R.isolated(column.title || column.label),
        style: { left: labels + i * width + "px", width: width * every + "px" },
      }, el("bdi", { text: R.cut(R.visible(column.label), 40) })));
    });

    // -- drawing -------------------------------------------------------------------------------

    const shownWidth = () => Math.min(total, Math.max(0, across.clientWidth - labels));

    function draw() {
      const top = scroll.scrollTop;
      const first = Math.max(0, Math.floor(top / row) - 1);
      const last = Math.min(model.rows.length, Math.ceil((top + height) / row) + 1);
      const count = last - first;
      drawNames(first, last);
      canvas.style.top = first * row + "px";
      canvas.style.left = labels + "px";
      canvas.style.width = total + "px";
      canvas.style.height = count * row + "px";
      canvas.width = Math.max(1, Math.round(total * ratio));
      canvas.height = Math.max(1, Math.round(count * row * ratio));
      if (!count || !model.columns.length) return;
      const columns = model.columns.length;
      const pixels = new ImageData(columns, count);
      const marks = [];
      for (let r = 0; r < count; r++)
        for (let c = 0; c < columns; c++) {
          const code = model.rows[first + r].code(c);
          const [red, green, blue] = model.scale.colour(code);
          const at = 4 * (r * columns + c);
          pixels.data[at] = red;
          pixels.data[at + 1] = green;
          pixels.data[at + 2] = blue;
          pixels.data[at + 3] = code === model.none ? 0 : 255;
          const sign = model.rows[first + r].origin(c) ? "◆"
            : width >= 10 && row >= 12 ? model.scale.mark(code) : "";
          if (sign) marks.push([sign, r, c, red + green + blue > 380]);
        }
      const small = document.createElement("canvas");
      small.width = columns;
      small.height = count;
      small.getContext("2d").putImageData(pixels, 0, 0);
      const pen = canvas.getContext("2d");
      pen.imageSmoothingEnabled = false;
      pen.drawImage(small, 0, 0, canvas.width, canvas.height);
      pen.scale(ratio, ratio);
      const style = getComputedStyle(frame);
      pen.fillStyle = style.getPropertyValue("--page");
      if (row >= 8) for (let r = 0; r <= count; r++) pen.fillRect(0, r * row, total, 1);
      if (width >= 6) for (let c = 0; c <= columns; c++) pen.fillRect(c * width, 0, 1, count * row);
      pen.font = "bold 11px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      for (const [sign, r, c, bright] of marks) {
        pen.fillStyle = bright ? "#000" : "#fff";
        pen.fillText(sign, c * width + width / 2, r * row + row / 2 + 0.5);
      }
      const outline = (at, colour, thick) => {
        if (!at || at.row < first || at.row >= last) return;
        pen.strokeStyle = colour;
        pen.lineWidth = thick;
        pen.strokeRect(at.column * width + thick / 2, (at.row - first) * row + thick / 2,
          Math.max(2, width - thick), Math.max(2, row - thick));
      };
      outline(model.picked, style.getPropertyValue("--accent"), 3);
      if (document.activeElement === frame) outline(cursor, style.getPropertyValue("--ink"), 2);
      if (hover) outline(hover, style.getPropertyValue("--ink"), 1);
    }

    function drawNames(first, last) {
      names.style.width = labels + "px";
      const shown = [];
      const each = fit ? Math.max(1, Math.ceil(14 / row)) : 1;
      for (let r = first; r < last; r++) {
        if (r % each) continue;
        const one = model.rows[r];
        shown.push(el("div", {
          class: "name" + (model.picked && model.picked.row === r ? " picked" : "") +
            (one.strong ? " strong" : ""),
          title: R.isolated(one.title), "data-row": r, "data-cell": one.title,
          style: { top: r * row + "px", height: row * each + "px", "--depth": one.depth,
            "line-height": row * each + "px" },
        },
          one.open === null || one.open === undefined ? el("span", { class: "twist" })
            : el("span", { class: "twist", "data-twist": r, text: one.open ? "▾" : "▸" }),
          el("bdi", { text: R.cut(R.visible(one.name), 60) }),
          one.mark && el("b", { class: "flag-first", text: " ◆" }),
          one.note && el("bdi", { class: "faint", text: " " + R.cut(R.visible(one.note), 40) })));
      }
      R.clear(names, shown);
    }

    let asked = false;
    function later() {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        draw();
      });
    }

    // -- mouse and keys ------------------------------------------------------------------------

    function placeOf(event) {
      const area = canvas.getBoundingClientRect();
      const top = body.getBoundingClientRect().top;
      const column = Math.floor((event.clientX - area.left) / width);
      const at = Math.floor((event.clientY - top) / row);
      if (column < 0 || column >= model.columns.length) return null;
      return at < 0 || at >= model.rows.length ? null : { row: at, column };
    }

    function tell(at) {
      told.textContent = at && model.rows[at.row] ? model.told(at.row, at.column) : "";
    }

    canvas.addEventListener("mousemove", (event) => {
      const at = placeOf(event);
      if (at && hover && at.row === hover.row && at.column === hover.column) return;
      hover = at;
      tip.textContent = at ? model.told(at.row, at.column) : "";
      tip.style.left = Math.min(event.clientX + 14, window.innerWidth - 340) + "px";
      tip.style.top = event.clientY + 18 + "px";
      tell(at || cursor);
      later();
    });
    canvas.addEventListener("mouseleave", () => {
      hover = null;
      tip.textContent = "";
      tell(cursor);
      later();
    });
    canvas.addEventListener("click", (event) => {
      const at = placeOf(event);
      if (!at) return;
      cursor = at;
      frame.focus({ preventScroll: true });
      model.pick(at.row, at.column);
    });
    names.addEventListener("click", (event) => {
      const twist = event.target.closest("[data-twist]");
      const name = event.target.closest("[data-row]");
      if (!name) return;
      const at = Number(name.dataset.row);
      if (twist) model.toggle(at);
      else model.pick(at, cursor.column);
    });
    names.addEventListener("dblclick", (event) => {
      const name = event.target.closest("[data-row]");
      if (name && R.known(model.rows[Number(name.dataset.row)].open))
        model.toggle(Number(name.dataset.row));
    });
    frame.addEventListener("focus", later);
    frame.addEventListener("blur", later);
    frame.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const open = model.rows[cursor.row] ? model.rows[cursor.row].open : null;
      const page = Math.max(1, Math.floor(height / row) - 1);
      const moves = {
        ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
        PageUp: [-page, 0], PageDown: [page, 0], Home: [0, -1e9], End: [0, 1e9],
      };
      if (event.key === "Enter") model.pick(cursor.row, cursor.column);
      else if (event.key === " " && R.known(open)) model.toggle(cursor.row);
      else if (event.key === "+" && open === false) model.toggle(cursor.row);
      else if (event.key === "-" && open === true) model.toggle(cursor.row);
      else if (event.key in moves) {
        const [down, right] = moves[event.key];
        cursor = {
          row: Math.min(Math.max(cursor.row + down, 0), model.rows.length - 1),
          column: Math.min(Math.max(cursor.column + right, 0), model.columns.length - 1),
        };
        show();
        tell(cursor);
      } else return;
      event.preventDefault();
      later();
    });
    scroll.addEventListener("scroll", later);

    function show() {
      const top = cursor.row * row;
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      else if (top + row > scroll.scrollTop + height) scroll.scrollTop = top + row - height;
      const left = cursor.column * width;
      if (left < across.scrollLeft) across.scrollLeft = left;
      else if (left + width > across.scrollLeft + shownWidth())
        across.scrollLeft = left + width - shownWidth();
    }

    // -- paper ---------------------------------------------------------------------------------

    /** Return the map as elements that a page of paper is wide enough for. */
    function onPaper() {
      const scale = model.scaleNow();
      const count = model.columns.length;
      const css = (code) => (code === model.none ? "#fff"
        : `rgb(${scale.colour(code).join(" ")})`);
      const each = Math.max(1, Math.ceil(count / (model.tall ? 40 : 16)));
      const heads = model.columns.map((column, i) => i % each === 0 && i + each / 2 <= count &&
        el("span", { style: {
          left: (100 * i) / count + "%", width: (100 * Math.min(each, count - i)) / count + "%",
        } }, el("bdi", { text: R.visible(column.label) })));
      const longest = Math.max(0, ...model.columns.map((column) => column.label.length));
      const line = (one) => {
        const codes = model.columns.map((_, c) => one.code(c));
        const stops = codes.map((code, c) =>
          `${css(code)} ${(100 * c) / count}% ${(100 * (c + (count > 40 ? 1 : 0.97))) / count}%` +
          (count > 40 ? "" : `, #fff ${(100 * (c + 0.97)) / count}% ${(100 * (c + 1)) / count}%`));
        const signs = codes.map((code, c) => {
          const sign = one.origin(c) ? "◆" : count <= 40 ? scale.mark(code) : "";
          return sign && el("i", { text: sign, style: {
            left: (100 * c) / count + "%", width: 100 / count + "%",
            color: scale.colour(code).reduce((x, y) => x + y) > 380 ? "#000" : "#fff",
          } });
        });
        return el("div", { class: "paper-row" },
          el("span", { class: "paper-name", style: { "--depth": one.depth } },
            el("bdi", { text: R.visible(one.name) }), one.mark && el("b", { text: " ◆" }),
            one.note && el("bdi", { class: "faint", text: " " + R.visible(one.note) })),
          el("span", { class: "codes", style: {
            background: `linear-gradient(90deg, ${stops.join(", ")})`,
          } }, signs));
      };
      const rows = model.rows.slice(0, R.PRINTED);
      return el("div", { class: "on-paper" }, model.legendNow(scale),
        el("div", { class: "paper-row" }, el("span"), el("div", {
          class: "paper-heads" + (model.tall ? " tall" : ""),
          style: model.tall ? { height: Math.min(20, 1 + 0.62 * longest) + "em" } : {},
        }, heads)), rows.map(line),
        model.rows.length > rows.length && el("p", { text: R.w("printed_rows", {
          n: rows.length, of: model.rows.length,
        }) }));
    }

    if (R.known(model.top)) scroll.scrollTop = model.top;
    else if (model.picked) show();
    draw();
    tell(cursor);
    return {
      frame,
      top: () => scroll.scrollTop,
      cursor: () => cursor,
      onPaper,
    };
  };
})();
