//! Files that are no sheet, or that would fill the memory: refused by name.

use super::files::{archive, open_document};
use super::*;

fn refused(bytes: &[u8]) -> String {
    let options = Options { sheet: None, ..Options::default() };
    match read(bytes, &options, &clock()) {
        Err(what) => what,
        Ok(sheet) => wrong(&sheet).join("\n"),
    }
}

#[test]
fn what_is_no_spreadsheet_is_named() {
    let files: [(&[u8], &str); 12] = [
        (b"", "empty"),
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1....",
            "an old Excel file (.xls), or one with a password",
        ),
        (b"<html><table><tr><td>gpus", "a web page or XML"),
        (b"\xef\xbb\xbf  <?xml version=\"1.0\"?>", "a web page or XML"),
        (b"%PDF-1.7 \xff\xfe", "a PDF"),
        (b"\x1f\x8b\x08\x00", "a compressed file"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x01\xff", "no spreadsheet and no text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff", "no spreadsheet and no text"),
        (b"PK\x03\x04 broken", "a damaged workbook"),
        (b"gpus,start,end\x00\x01\x02", "no spreadsheet and no text"),
        (b"just a letter to you\nall\n", "no line names the columns"),
        (b"\xff\xfe", "no line names the columns"),
    ];
    for (bytes, wanted) in files {
        let said = refused(bytes);
        assert!(said.contains(wanted), "{bytes:?}: {said}");
    }
    let numbers = archive(&[("Index/Document.iwa", "")]);
    assert!(refused(&numbers).contains("Apple Numbers"));
    assert!(refused(&archive(&[("xl/workbook.bin", "")])).contains(".xlsb"));
    assert!(
        refused(&archive(&[("word/document.xml", "")])).contains("a zip file, but no workbook")
    );
    let letter =
        archive(&[("mimetype", "application/vnd.oasis.opendocument.text"), ("content.xml", "")]);
    assert!(refused(&letter).contains("no spreadsheet"));
    assert!(
        refused(&archive(&[("xl/workbook.xml", "<workbook")])).contains("a damaged .xlsx file")
    );
}

#[test]
fn a_workbook_that_unpacks_to_gigabytes_is_refused() {
    let bomb = archive(&[("xl/workbook.xml", &" ".repeat(300 << 20))]);
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    assert!(refused(&bomb).contains("unpacks to more than 256 MiB"));
}

#[test]
fn a_cell_that_is_repeated_or_far_away_meets_a_limit() {
    let row = |rows: u32, columns: u32| {
        open_document(&format!(
            "<table:table table:name=\"a\"><table:table-row table:number-rows-repeated=\"{rows}\"><table:table-cell \
             table:number-columns-repeated=\"{columns}\" office:value-type=\"string\"><text:p>x</text:p></table:table-cell>\
             </table:table-row></table:table>"
        ))
    };
    assert!(refused(&row(1, 4_000_000_000)).contains("in column 1025, at most 1024"));
    assert!(refused(&row(4_000_000_000, 1)).contains("in row 100001, at most 100000"));
    assert!(refused(&row(50_000, 1_000)).contains("more than 1000000 cells"));
    // All sheets of a workbook count together.
    let table = |name: &str| {
        let row = "<table:table-row table:number-rows-repeated=\"600\"><table:table-cell \
                   table:number-columns-repeated=\"1000\" office:value-type=\"string\"><text:p>x</text:p></table:table-cell>\
                   </table:table-row>";
        format!("<table:table table:name=\"{name}\">{row}</table:table>")
    };
    let sheets = open_document(&[table("a"), table("b")].concat());
    assert!(refused(&sheets).contains("more than 1000000 cells"));
    let mut book = rust_xlsxwriter::Workbook::new();
    book.add_worksheet().write(1_048_575, 16_383, "x").unwrap();
    assert!(refused(&book.save_to_buffer().unwrap()).contains("in row 1048576, at most 100000"));
    let merged = open_document(
        "<table:table table:name=\"a\"><table:table-row><table:table-cell table:number-rows-spanned=\"99999\" \
         table:number-columns-spanned=\"1000\" office:value-type=\"string\"><text:p>x</text:p></table:table-cell></table:table-row>\
         <table:table-row table:number-rows-repeated=\"99998\"/><table:table-row><table:table-cell office:value-type=\"string\">\
         <text:p>y</text:p></table:table-cell></table:table-row></table:table>",
    );
    assert!(refused(&merged).contains("more than 1000000 cells"));
    let wide = format!("gpus,start,end\n{}", ",".repeat(2_000));
    assert!(well_or_empty(&wide), "empty cells are none");
    let wide = format!("gpus,start,end\n1{}2\n", ",".repeat(2_000));
    assert!(refused(wide.as_bytes()).contains("2: 2001 cells, at most 1024"));
    let full = format!("gpus,start,end\n{}", format!("1{}2\n", ",".repeat(1_000)).repeat(1_000));
    assert!(read(full.as_bytes(), &Options::default(), &clock()).unwrap_err().contains("cells"));
    let long = format!("gpus,start,end\n{}", "1,now,+1h\n".repeat(100_001));
    assert!(refused(long.as_bytes()).contains("more than 100000 lines"));
}

fn well_or_empty(text: &str) -> bool {
    wrong(&sheet(text)) == ["0: no line asks for GPUs"]
}

/// No bytes stop the program, in whichever way a sheet is read; a damaged one asks for no more lines than there are.
fn thrown<S: AsRef<[u8]>>(good: &[S], file: impl Fn(&[u8]) -> Vec<u8>) {
    fleet_hostile_bytes::throw_at(good, |bytes| {
        let bytes = file(bytes);
        let read = |grid| read(&bytes, &Options { grid, ..Options::default() }, &clock()).is_ok();
        read(false) | read(true)
    });
}

#[test]
fn hostile_texts() {
    let good = [
        "user,gpus,start,end,note\nada,v100:2,2026-11-23 09:00,2026-11-24 18:00,\"paper, figures\"\n",
        "END;Start;GPUs;Owner\r\n24.11.2026 18:00;23.11.2026;titan01:0-3;ada\r\n",
        "titan01\t0\t1\n23.11.\tada\tbob\n24.11.\tada\t\n",
    ];
    thrown(&good, <[u8]>::to_vec);
}

#[test]
fn hostile_workbooks() {
    let table = "<table:table table:name=\"A\"><table:table-row><table:table-cell><text:p>gpus</text:p>\
                 </table:table-cell><table:table-cell table:number-columns-repeated=\"3\"/></table:table-row></table:table>";
    thrown(&[open_document(table)], <[u8]>::to_vec);
    // The archive is whole, and what is in it is not.
    thrown(&[table], |text| open_document(&String::from_utf8_lossy(text)));
}

/// The parts of a workbook as a spreadsheet program writes it, by name.
fn parts_of_a_workbook() -> Vec<(String, String)> {
    let mut book = rust_xlsxwriter::Workbook::new();
    let sheet = book.add_worksheet();
    for (at, head) in (0..).zip(["user", "gpus", "start", "end"]) {
        sheet.write(0, at, head).unwrap();
    }
    sheet.write(1, 0, "ada").unwrap();
    sheet.write(1, 1, 2).unwrap();
    for (at, day) in [(2, "2026-11-23"), (3, "2026-11-24")] {
        let day = rust_xlsxwriter::ExcelDateTime::parse_from_str(day).unwrap();
        let format = rust_xlsxwriter::Format::new().set_num_format("yyyy-mm-dd");
        sheet.write_datetime_with_format(1, at, &day, &format).unwrap();
    }
    sheet.merge_range(3, 0, 3, 1, "", &rust_xlsxwriter::Format::new()).unwrap();
    let bytes = book.save_to_buffer().unwrap();
    let mut zip = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
    let names: Vec<String> = zip.file_names().map(|name| name.unwrap().into_owned()).collect();
    let text = |name: &String| std::io::read_to_string(zip.by_name(name).unwrap()).unwrap();
    let texts: Vec<String> = names.iter().map(text).collect();
    names.into_iter().zip(texts).collect()
}

#[test]
fn a_workbook_that_says_it_has_more_texts_than_bytes_is_refused() {
    let with_count = |count: &str| {
        let parts: Vec<(String, String)> = parts_of_a_workbook()
            .into_iter()
            .map(|(name, text)| (name, text.replace("uniqueCount=\"5\"", count)))
            .collect();
        let parts: Vec<(&str, &str)> = parts.iter().map(|(n, t)| (&**n, &**t)).collect();
        archive(&parts)
    };
    let read = |count| read(&with_count(count), &Options::default(), &clock());
    assert!(read("uniqueCount=\"5\"").is_ok());
    for count in [
        "uniqueCount=\"5555555555555\"",
        "uniqueCount = '99999999999999999999999999'",
        "uniqueCount=\"1\" uniqueCount=\"44444444\"",
    ] {
        let said = read(count).unwrap_err();
        assert!(said.contains("a damaged .xlsx file: it says that it has"), "{count}: {said}");
    }
}

#[test]
fn hostile_workbooks_of_excel() {
    const READ: [&str; 5] = [
        "xl/_rels/workbook.xml.rels",
        "xl/workbook.xml",
        "xl/sharedStrings.xml",
        "xl/styles.xml",
        "xl/worksheets/sheet1.xml",
    ];
    let parts = parts_of_a_workbook();
    for damaged in READ {
        let (_, good) = parts.iter().find(|(name, _)| name == damaged).unwrap();
        thrown(&[good], |text| {
            let text = String::from_utf8_lossy(text);
            let of = |(name, whole): &'_ (String, String)| match name == damaged {
                true => (name.clone(), text.to_string()),
                false => (name.clone(), whole.clone()),
            };
            let parts: Vec<(String, String)> = parts.iter().map(of).collect();
            let parts: Vec<(&str, &str)> = parts.iter().map(|(n, t)| (&**n, &**t)).collect();
            archive(&parts)
        });
    }
}
