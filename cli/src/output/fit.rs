//! How a table fits the terminal: which columns go, and how wide the others are. Pure.

/// Between two columns.
pub(super) const GAP: usize = 2;
/// What even a column that must stay is cut down to, where nothing else helps.
const WIDTH_MIN: usize = 4;

/// What is known of a column before it is printed. Widths are in cells of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measured {
    /// Of the widest of its texts and its title.
    pub(super) width: usize,
    /// The least width to which its texts are clipped.
    pub(super) clip: Option<usize>,
    /// Where not all columns fit, the highest rank goes first; 0 stays.
    pub(super) rank: u8,
    /// No row has anything in it.
    pub(super) is_empty: bool,
}

/// The width of each column, `None` for one that is left out, so that all of them fit into `available`.
///
/// Columns without content go first, then texts are clipped, then the column of the highest rank goes, and so on. A
/// terminal that is too narrow for the columns that stay gets all of them cut.
pub(super) fn fit(columns: &[Measured], available: usize) -> Vec<Option<usize>> {
    let mut widths: Vec<Option<usize>> = columns.iter().map(|column| Some(column.width)).collect();
    // Each turn leaves a column out or is the last.
    for _ in 0..=columns.len() {
        if total(&widths) <= available {
            return widths;
        }
        let empty = highest(columns, &widths, |column| column.is_empty);
        if let Some(at) = empty {
            widths[at] = None;
            continue;
        }
        if let Some(clipped) = shrink(columns, &widths, available, |column| column.clip) {
            return clipped;
        }
        match highest(columns, &widths, |_| true) {
            Some(at) => widths[at] = None,
            None => break,
        }
    }
    let forced = |column: &Measured| Some(column.width.min(WIDTH_MIN));
    let least = || columns.iter().zip(&widths).map(|(c, w)| w.and(forced(c))).collect();
    shrink(columns, &widths, available, forced).unwrap_or_else(least)
}

fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten();
    shown.clone().sum::<usize>() + GAP * shown.count().saturating_sub(1)
}

/// The column that goes first, of those that may go and that are meant.
fn highest(
    columns: &[Measured],
    widths: &[Option<usize>],
    meant: impl Fn(&Measured) -> bool,
) -> Option<usize> {
    let shown = columns.iter().enumerate().filter(|(at, _)| widths[*at].is_some());
    let droppable = shown.filter(|(_, column)| column.rank > 0 && meant(column));
    droppable.max_by_key(|(_, column)| column.rank).map(|(at, _)| at)
}

/// Takes from the widest column that may be clipped until all fit; `None` where that is not enough.
fn shrink(
    columns: &[Measured],
    widths: &[Option<usize>],
    available: usize,
    least: impl Fn(&Measured) -> Option<usize>,
) -> Option<Vec<Option<usize>>> {
    let mut widths = widths.to_vec();
    let excess = total(&widths).saturating_sub(available);
    for _ in 0..excess {
        let clippable = columns.iter().zip(&mut widths).filter_map(|(column, width)| {
            let (least, width) = (least(column)?, width.as_mut()?);
            (*width > least).then_some(width)
        });
        *clippable.max_by_key(|width| **width)? -= 1;
    }
    Some(widths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(width: usize) -> Measured {
        Measured { width, clip: None, rank: 0, is_empty: false }
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        assert_eq!(fit(&[column(10), column(20)], 32), [Some(10), Some(20)]);
        assert_eq!(fit(&[], 10), []);
    }

    #[test]
    fn columns_without_content_go_before_a_text_is_clipped() {
        let note = Measured { rank: 1, is_empty: true, ..column(4) };
        let reason = Measured { clip: Some(8), ..column(30) };
        assert_eq!(fit(&[column(10), note, reason], 44), [Some(10), None, Some(30)]);
        assert_eq!(fit(&[column(10), note, reason], 30), [Some(10), None, Some(18)]);
    }

    #[test]
    fn the_least_important_column_goes_where_clipping_is_not_enough() {
        let reason = Measured { clip: Some(10), rank: 1, ..column(40) };
        let memory = Measured { rank: 2, ..column(12) };
        assert_eq!(fit(&[column(10), memory, reason], 36), [Some(10), Some(12), Some(10)]);
        assert_eq!(fit(&[column(10), memory, reason], 35), [Some(10), None, Some(23)]);
        assert_eq!(fit(&[column(10), memory, reason], 21), [Some(10), None, None]);
    }

    #[test]
    fn the_widest_text_is_clipped_first() {
        let text = |width| Measured { clip: Some(4), ..column(width) };
        assert_eq!(fit(&[text(30), text(10)], 32), [Some(20), Some(10)]);
        assert_eq!(fit(&[text(30), text(10)], 18), [Some(8), Some(8)]);
    }

    #[test]
    fn no_terminal_is_too_narrow() {
        for available in 0..60 {
            let widths =
                fit(&[column(10), column(3), Measured { rank: 1, ..column(9) }], available);
            assert!(widths[0].is_some() && widths[1].is_some(), "{available}: {widths:?}");
            assert!(total(&widths) <= available.max(9), "{available}: {widths:?}");
        }
    }
}
