//! The same words by mail, where this machine sends any: for those who are not logged in when they could still do
//! something about it.
//!
//! Called by the task of terminals, beside its loop. How mail reaches people is the machine's matter: the program takes
//! a message on its standard input, as sendmail(8) has always done. Never waits longer than its caller.

use std::io;
use std::path::Path;
use std::process::Stdio;

use fleet_core::name::UserName;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Columns of a line.
const WIDTH: usize = 72;

/// Hands a message for `user` to `program`. It ends with this future.
pub(super) async fn send(
    program: &Path,
    user: &UserName,
    subject: &str,
    text: &str,
) -> io::Result<()> {
    let mut mailer = Command::new(program)
        .args(["-i", "--", user.as_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = mailer.stdin.take() {
        stdin.write_all(message(user, subject, text).as_bytes()).await?;
    }
    let status = mailer.wait().await?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("it ended with {status}"))) }
}

/// RFC 5322, in ASCII; RFC 3834 keeps absence notes from answering.
fn message(user: &UserName, subject: &str, text: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let (subject, text): (String, String) =
        (subject.chars().map(plain).collect(), text.chars().map(plain).collect());
    let mut body = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.len() > WIDTH {
            body.push('\n');
            column = 0;
        }
        if column > 0 {
            body.push(' ');
            column += 1;
        }
        body.push_str(word);
        column += word.len();
    }
    format!("To: {user}\nSubject: {subject}\nAuto-Submitted: auto-generated\n\n{body}\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_message_is_plain_lines_and_its_head_stays_a_head() {
        let ada = UserName::parse("ada").unwrap();
        let said =
            message(&ada, "res-1 ends\nBcc: all", &format!("{} \x1b[2J", "word ".repeat(20)));
        let (head, body) = said.split_once("\n\n").unwrap();
        assert_eq!(head, "To: ada\nSubject: res-1 ends?Bcc: all\nAuto-Submitted: auto-generated");
        assert!(
            body.lines().all(|line| line.len() <= WIDTH) && body.lines().count() == 2,
            "{body}"
        );
        assert!(!body.contains('\x1b'));
    }

    #[tokio::test]
    async fn the_program_gets_whom_it_is_for_and_the_message() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("sendmail");
        let script =
            "#!/bin/sh\ncd \"${0%/*}\"; echo \"$@\" > args; cat > message; exit $(cat code)\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("code"), "0").unwrap();
        let ada = UserName::parse("ada").unwrap();
        send(&program, &ada, "soon", "It ends.").await.unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("args"), "-i -- ada\n");
        assert!(read("message").ends_with("\n\nIt ends.\n"), "{}", read("message"));
        std::fs::write(dir.path().join("code"), "75").unwrap();
        let refused = send(&program, &ada, "soon", "It ends.").await.unwrap_err();
        assert!(refused.to_string().contains("75"), "{refused}");
        let missing = send(&dir.path().join("none"), &ada, "soon", "It ends.").await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
