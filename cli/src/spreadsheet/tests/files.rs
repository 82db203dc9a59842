//! Workbooks of Excel's and LibreOffice's making, and text in other encodings.

use std::io::{Cursor, Write as _};

use rust_xlsxwriter::{ExcelDateTime, Format, Workbook};
use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;

fn dated(text: &str) -> ExcelDateTime {
    ExcelDateTime::parse_from_str(text).unwrap()
}

/// A zip file of these parts.
pub(super) fn archive(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in parts {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// An `.ods` file with these tables.
pub(super) fn open_document(tables: &str) -> Vec<u8> {
    let content = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><office:document-content xmlns:office=\"o\" xmlns:table=\"t\" \
         xmlns:text=\"x\"><office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body></office:document-content>"
    );
    archive(&[
        ("mimetype", "application/vnd.oasis.opendocument.spreadsheet"),
        ("content.xml", &content),
    ])
}

#[test]
fn a_workbook_of_excel_needs_no_guess_for_its_dates() {
    let mut book = Workbook::new();
    let (with_time, day_alone) = (
        Format::new().set_num_format("dd.mm.yyyy hh:mm"),
        Format::new().set_num_format("dd/mm/yyyy"),
    );
    let sheet = book.add_worksheet();
    sheet.set_name("Belegung").unwrap();
    sheet.merge_range(0, 0, 0, 6, "GPU-Belegung 2026", &Format::new()).unwrap();
    for (at, head) in (0..).zip(["Nr.", "Benutzer", "Server", "GPUs", "Von", "Bis", "Bemerkung"]) {
        sheet.write(2, at, head).unwrap();
    }
    // Ada's name is merged over two rows.
    sheet.merge_range(3, 1, 4, 1, "ada ", &Format::new()).unwrap();
    sheet.write(3, 3, 2.0).unwrap();
    sheet.write_datetime_with_format(3, 4, dated("2026-12-09 09:00"), &with_time).unwrap();
    sheet.write_datetime_with_format(3, 5, dated("2026-12-09 19:30"), &with_time).unwrap();
    sheet.write(3, 6, "erste Zeile\nzweite").unwrap();
    sheet.write(4, 2, "titan01").unwrap();
    sheet.write(4, 3, "0-1").unwrap();
    sheet.write_datetime_with_format(4, 4, dated("2026-12-10"), &day_alone).unwrap();
    sheet.write_datetime_with_format(4, 5, dated("2026-12-11"), &day_alone).unwrap();
    // Midnight that the sheet shows is midnight; an end without a format is a number of days.
    sheet.write(5, 1, "bob").unwrap();
    sheet.write(5, 3, 1).unwrap();
    sheet.write_datetime_with_format(5, 4, dated("2026-12-09 00:00"), &with_time).unwrap();
    sheet.write_datetime_with_format(5, 5, dated("2026-12-10 00:00"), &with_time).unwrap();
    sheet.write(6, 0, 4).unwrap();
    sheet.write(7, 1, "eve").unwrap();
    sheet.write(7, 3, 1).unwrap();
    sheet.write(7, 4, 46354.375).unwrap();
    sheet.write(7, 5, 46355).unwrap();
    book.add_worksheet().set_name("Leer").unwrap();
    let bytes = book.save_to_buffer().unwrap();
    // One cell of the column names GPUs, and the others count them.
    let columns = parse_named("GPUs=gpus").unwrap();
    let read = with(&bytes, &Options { columns, ..Options::default() });
    let notes = [
        "read sheet \"Belegung\"",
        "the columns are named in line 3",
        "ignored the column: Nr.",
        "2 times are plain numbers, read as days since 1899-12-30, as Excel counts them",
        "ignored lines that ask for nothing: 7",
    ];
    assert_eq!(read.notes, notes);
    let lines = well(read);
    let users: Vec<_> = lines.iter().map(|line| line.user.as_str()).collect();
    assert_eq!(users, ["ada", "ada", "bob", "eve"]);
    assert_eq!(lines[0].gpus, Which::Some("2".parse().unwrap()));
    assert_eq!(lines[0].note, "erste Zeile zweite");
    assert_eq!(lines[1].gpus, these(&["titan01:0", "titan01:1"]));
    let windows: Vec<_> = lines.iter().map(window).collect();
    assert_eq!(
        windows,
        [
            "2026-12-09 09:00 - 2026-12-09 19:30",
            "2026-12-10 00:00 - 2026-12-12 00:00",
            "2026-12-09 00:00 - 2026-12-10 00:00",
            "2026-11-28 09:00 - 2026-11-30 00:00",
        ]
    );
}

#[test]
fn of_several_sheets_one_is_named() {
    let mut book = Workbook::new();
    for (name, gpus) in [("Oktober", 1), ("November", 2)] {
        let sheet = book.add_worksheet();
        sheet.set_name(name).unwrap();
        for (at, text) in (0..).zip(["gpus", "start", "end"]) {
            sheet.write(0, at, text).unwrap();
        }
        sheet.write(1, 0, gpus).unwrap();
        sheet.write(1, 1, "now").unwrap();
        sheet.write(1, 2, "+1h").unwrap();
    }
    let bytes = book.save_to_buffer().unwrap();
    let refused = read(&bytes, &Options::default(), &clock()).unwrap_err();
    assert_eq!(
        refused,
        "a workbook with 2 sheets (\"Oktober\", \"November\"); name one with --sheet"
    );
    let named = |name: &str| Options { sheet: Some(name.to_owned()), ..Options::default() };
    let lines = well(with(&bytes, &named("november")));
    assert_eq!(lines[0].gpus, Which::Some("2".parse().unwrap()));
    let refused = read(&bytes, &named("Mai"), &clock()).unwrap_err();
    assert_eq!(refused, "a workbook without a sheet \"Mai\"; it has \"Oktober\", \"November\"");
    let refused = read(b"gpus,start,end\n", &named("Mai"), &clock()).unwrap_err();
    assert_eq!(refused, "text, which has no sheets; leave --sheet \"Mai\" out");
}

#[test]
fn a_workbook_of_libre_office_is_read_with_its_types_and_merged_cells() {
    let cell = |text: &str| {
        format!(
            "<table:table-cell office:value-type=\"string\"><text:p>{text}</text:p></table:table-cell>"
        )
    };
    let date = |date: &str| {
        format!(
            "<table:table-cell office:value-type=\"date\" office:date-value=\"{date}\"><text:p>12/09/26</text:p></table:table-cell>"
        )
    };
    let head = ["Benutzer", "GPUs", "Von", "Bis", "Bemerkung"].map(cell).concat();
    let merged = "<table:table-cell table:number-rows-spanned=\"2\" office:value-type=\"string\"><text:p>ada</text:p></table:table-cell>";
    let two = "<table:table-cell office:value-type=\"float\" office:value=\"2\"><text:p>2,0</text:p></table:table-cell>";
    let note = "<table:table-cell office:value-type=\"string\"><office:annotation><text:p>hidden</text:p></office:annotation>\
        <text:p>a &amp; b<text:line-break/>c</text:p><text:p>d<text:s/>e&#8205;</text:p></table:table-cell>";
    let filler = "<table:table-cell table:number-columns-repeated=\"16000\"/>";
    let tables = format!(
        "<table:table table:name=\"Plan\"><table:table-row>{head}{filler}</table:table-row>\
         <table:table-row table:number-rows-repeated=\"2\">{filler}</table:table-row>\
         <table:table-row>{merged}{two}{}{}{note}</table:table-row>\
         <table:table-row><table:covered-table-cell/>{two}{}{}</table:table-row>\
         <table:table-row table:number-rows-repeated=\"1048000\">{filler}</table:table-row></table:table>\
         <table:table table:name=\"Leer\"><table:table-row>{filler}</table:table-row></table:table>",
        date("2026-12-09T09:00:00"),
        date("2026-12-09"),
        date("2026-12-10"),
        date("2026-12-10"),
    );
    let lines = well(with(&open_document(&tables), &Options::default()));
    let seen: Vec<_> =
        lines.iter().map(|line| (line.number, line.user.as_str(), window(line))).collect();
    assert_eq!(
        seen,
        [
            (4, "ada", "2026-12-09 09:00 - 2026-12-10 00:00".to_owned()),
            (5, "ada", "2026-12-10 00:00 - 2026-12-11 00:00".to_owned()),
        ]
    );
    assert_eq!(lines[0].note, "a & b c d e");
}

#[test]
fn text_is_read_in_the_encodings_that_spreadsheets_write() {
    let text = "Benutzer;GPUs;Von;Bis;Bemerkung\r\njörg;1;28.11.2026;28.11.2026;Größe €\r\n";
    let utf16 = |big: bool, mark: bool| -> Vec<u8> {
        let marked = if mark { format!("\u{feff}{text}") } else { text.to_owned() };
        let unit = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
        marked.encode_utf16().flat_map(unit).collect()
    };
    let (windows, _, _) = encoding_rs::WINDOWS_1252.encode(text);
    let files = [
        text.as_bytes().to_vec(),
        [b"\xef\xbb\xbf", text.as_bytes()].concat(),
        utf16(false, true),
        utf16(true, true),
        utf16(false, false),
        utf16(true, false),
        windows.into_owned(),
    ];
    for bytes in &files {
        let read = with(bytes, &Options::default());
        let guessed =
            read.notes.iter().any(|note| note.starts_with("not UTF-8: read as Windows-1252"));
        assert_eq!(guessed, bytes == &files[6], "{:?}", read.notes);
        let lines = well(read);
        assert_eq!((lines[0].user.as_str(), lines[0].note.as_str()), ("jörg", "Größe €"));
    }
}

#[test]
fn a_german_sheet_and_one_of_google_forms_need_one_flag_at_most() {
    let german = "GPU-Reservierungen Arbeitsgruppe;;;;;\n;;;;;\nPerson;Server;GPU;Von;Bis;Bemerkung\n\
        ada;titan01;0-1;28.11.2026 09:00;30.11.2026;\"Paper, Abb. 3\"\n\
        bob ;titan02;alle;1.12.2026;1.12.2026;\n;;;;;\n\
        eve;titan01;2,3;02.12.2026 18:00;02.12.2026 24:00;über Nacht\n";
    let lines = well(sheet(german));
    assert_eq!(
        lines.iter().map(window).collect::<Vec<_>>(),
        [
            "2026-11-28 09:00 - 2026-12-01 00:00",
            "2026-12-01 00:00 - 2026-12-02 00:00",
            "2026-12-02 18:00 - 2026-12-03 00:00",
        ]
    );
    assert_eq!(lines[1].gpus, Which::All("titan02".to_owned()));
    let forms = "Timestamp,Email Address,Which server?,Number of GPUs,Start date and time,End date and time,What for?\n\
        11/20/2026 8:01:02,ada@example.org,titan01,2,12/1/2026 9:00:00,12/3/2026 18:00:00,paper\n\
        11/20/2026 9:13:40,bob@example.org,titan02,1,12/2/2026 10:00:00,12/2/2026 19:00:00,\n";
    let columns = parse_named("Email Address=user").unwrap();
    let options = Options { columns, ..Options::default() };
    // The time stamps of the form are of no column, and say nothing about the order.
    let open = with(forms.as_bytes(), &options);
    assert_eq!(open.problems.len(), 1, "{:?}", open.problems);
    let options = Options { dates: Some(DateOrder::Mdy), ..options };
    let lines = well(with(forms.as_bytes(), &options));
    assert_eq!(
        (lines[0].user.as_str(), window(&lines[1]).as_str()),
        ("ada", "2026-12-02 10:00 - 2026-12-02 19:00")
    );
}
