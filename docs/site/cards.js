/* The search on the page of backends: a row stays if it has all words. */
document$.subscribe(() => {
  const field = document.getElementById("cards-search");
  if (!field) return;
  const rows = [...document.querySelectorAll("#cards tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    rows.forEach((row, number) => { row.hidden = !words.every((word) => texts[number].includes(word)); });
  });
});
