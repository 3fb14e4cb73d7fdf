// How a table is shown on a phone (extra.css): sentences as a list, with the name of each column before its cells, and
// numbers as columns that scroll beside the first one.
const LONG = 40;

document$.subscribe(() => {
  for (const table of document.querySelectorAll(".md-typeset table:not([class], #cards)")) {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    const cells = [...table.querySelectorAll("tbody td")];
    const isLong = cells.some((cell) => cell.cellIndex > 0 && cell.textContent.length > LONG);
    if (!isLong) table.dataset.as = "numbers";
    else if (names.length > 2) table.dataset.as = "list";
    for (const cell of cells) {
      const name = names[cell.cellIndex];
      if (name) cell.dataset.column = name;
    }
  }
});
