//! Tables of text, as wide as their contents.

use super::top::terminal_size;

/// A table. Columns of numbers are right-aligned.
#[derive(Debug)]
pub(super) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Create a table with these columns.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|name| (*name).to_owned()).collect(), rows: Vec::new() }
    }

    /// Add a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Return the lines, at most as wide as the terminal, if stdout is one.
    pub fn render(&self) -> String {
        self.within(terminal_size().map(|(width, _)| width.into()))
    }

    /// Return the lines. If they are wider than `most`, the widest column of text is cut, down to its title.
    fn within(&self, most: Option<usize>) -> String {
        let all: Vec<&Vec<String>> = std::iter::once(&self.head).chain(&self.rows).collect();
        let width = |column: usize| all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let mut widths: Vec<usize> = (0..self.head.len()).filter_map(width).collect();
        let numbers = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.all(|cell| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        let right: Vec<bool> = (0..self.head.len()).map(numbers).collect();
        let all_widths = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        let texts = (0..widths.len()).filter(|column| !right[*column]);
        if let (Some(most), Some(widest)) = (most, texts.max_by_key(|column| widths[*column])) {
            let title = self.head[widest].chars().count();
            widths[widest] = widths[widest].saturating_sub(all_widths.saturating_sub(most)).max(title);
        }
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&right).map(|((cell, &width), &right)| {
                let cell = match cell.char_indices().nth(width) {
                    Some(_) => cell.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
                    None => cell.clone(),
                };
                let space = " ".repeat(width.saturating_sub(cell.chars().count()));
                if right { format!("{space}{cell}") } else { format!("{cell}{space}") }
            });
            format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        all.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["space", "name", "hit rate"]);
        table.row(["1".into(), "llama".into(), "99.9%".into()]);
        table.row(["12".into(), "a".into(), "-".into()]);
        let whole = "space  name   hit rate\n    1  llama     99.9%\n   12  a             -\n";
        assert_eq!((table.within(None), table.within(Some(22))), (whole.to_owned(), whole.to_owned()));
        assert_eq!(table.within(Some(21)), "space  name  hit rate\n    1  lla…     99.9%\n   12  a            -\n");
        assert_eq!(table.within(Some(9)), table.within(Some(21)), "never less than the titles");
    }
}
