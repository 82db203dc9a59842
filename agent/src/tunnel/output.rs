//! Sends the output of an attempt to a user who watches it, from the log's files, and their standard input back.
//!
//! The files are the truth: what was rotated away is gone, what is there comes whole and in order, during
//! the attempt and after it. The stream ends when the attempt has ended and everything was sent.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use fleet_core::id::AllocationId;
use fleet_proto::v1;
use fleet_proto::v1::tunnel_frame::Frame;
use tokio::sync::watch;
use tokio::time::sleep;

use super::wake::Wake;
use super::{FRAME_BYTES_MAX, FromUser, Gone, ToUser, Tunnels};
use crate::attempts::AllocationDir;
use crate::shim_client::{Attached, ShimClient};
use fleet_node::AttemptPhase;
use fleet_shim::log::{LogReader, Record, Stream};
use fleet_shim::order::WindowSize;

/// How often the log is checked if no notice of new output comes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Records read in one turn, so that one stream does not keep the others waiting.
const RECORDS_PER_TURN: usize = 256;
/// Most bytes kept of what comes before the last lines.
const TAIL_BYTES_MAX: usize = 4 << 20;
/// How long standard input waits between two tries to reach a job that is still starting.
const STDIN_WAIT: Duration = Duration::from_millis(20);

impl Tunnels {
    /// Sends the output as it was asked for.
    pub(super) async fn output(
        &self,
        id: &AllocationId,
        wish: v1::TunnelOutput,
        to: &ToUser,
        from: &mut FromUser,
    ) -> Result<(), Gone> {
        let dir = self.registry.dir(id);
        let phase = self.registry.get(id).map(|shown| shown.phase);
        if phase.is_none() && !dir.exists() {
            let gone = format!("this node has no output of {id} any more");
            to.send(Frame::Error(gone)).await?;
            return to.send(Frame::OutputEnded(true)).await;
        }
        let heard = async {
            if wish.interactive {
                feed(&dir, phase.clone(), from, to).await;
                // The job keeps running without this input, and the user still gets its output.
                std::future::pending().await
            }
            // Nothing is to be heard from the user but that they went away.
            while from.next().await.is_some() {}
        };
        tokio::select! {
            sent = self.follow(&dir, phase.clone(), &wish, to) => sent,
            () = heard => Err(Gone),
        }
    }

    async fn follow(
        &self,
        dir: &AllocationDir,
        phase: Option<watch::Receiver<AttemptPhase>>,
        wish: &v1::TunnelOutput,
        to: &ToUser,
    ) -> Result<(), Gone> {
        let mut wake: Option<Wake> = None;
        let mut follower = Follower { reader: LogReader::new(dir.path().to_owned()), to };
        let mut phase = phase;
        if !wish.from_beginning {
            let lines = usize::try_from(wish.tail_lines).unwrap_or(usize::MAX);
            follower.skip_to_tail(dir.path(), lines).await?;
        }
        loop {
            // Made before looking: what comes while we look is not missed.
            if wake.is_none() && wish.follow {
                wake = self.wakes.watch(dir.path()).ok();
            }
            let notified = wake.as_ref().map(Wake::notified);
            tokio::pin!(notified);
            if let Some(notified) = notified.as_mut().as_pin_mut() {
                notified.enable();
            }
            let ended = phase.as_ref().is_none_or(|phase| *phase.borrow() == AttemptPhase::Ended);
            if follower.send_some().await? {
                continue;
            }
            if ended || !wish.follow {
                return to.send(Frame::OutputEnded(true)).await;
            }
            tokio::select! {
                () = async { match notified.as_mut().as_pin_mut() {
                    Some(notified) => notified.await,
                    None => std::future::pending().await,
                } } => {}
                changed = phase_changed(&mut phase) => if !changed { phase = None },
                () = sleep(LOOK_EVERY) => {}
            }
        }
    }
}

async fn phase_changed(phase: &mut Option<watch::Receiver<AttemptPhase>>) -> bool {
    match phase {
        Some(phase) => phase.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}

/// The last records of a log.
#[derive(Default)]
struct Last {
    kept: VecDeque<Record>,
    /// The lines that are wanted are in them, or as much as is kept at all.
    is_enough: bool,
}

struct Follower<'a> {
    reader: LogReader,
    to: &'a ToUser,
}

impl Follower<'_> {
    /// Sends what is there, up to a turn's worth; false when there was nothing.
    async fn send_some(&mut self) -> Result<bool, Gone> {
        let mut joined = Joined::default();
        let mut found = false;
        for _ in 0..RECORDS_PER_TURN {
            let Some(record) = self.read().await? else { break };
            found = true;
            if let Some(frame) = joined.push(record.stream, record.data) {
                self.to.send(frame).await?;
            }
        }
        if let Some(frame) = joined.rest() {
            self.to.send(frame).await?;
        }
        Ok(found)
    }

    /// Reads to the end, then sends the last lines. Of a long log it reads only as many of the newest segments as have
    /// them: it is asked for every few seconds while somebody looks at the page of a job.
    async fn skip_to_tail(&mut self, dir: &Path, lines: usize) -> Result<(), Gone> {
        let mut kept = VecDeque::new();
        for segments in 1.. {
            let (reader, is_cut) = match LogReader::of_newest(dir.to_owned(), segments) {
                Ok(begun) => begun,
                Err(error) => return self.unreadable(&error).await,
            };
            self.reader = reader;
            let found = self.last_records(lines).await?;
            kept = found.kept;
            if found.is_enough || !is_cut {
                break;
            }
        }
        cut_to_lines(&mut kept, lines);
        let mut joined = Joined::default();
        for record in kept {
            if let Some(frame) = joined.push(record.stream, record.data) {
                self.to.send(frame).await?;
            }
        }
        if let Some(frame) = joined.rest() {
            self.to.send(frame).await?;
        }
        Ok(())
    }

    /// What is left to read, without what comes before the last lines.
    async fn last_records(&mut self, lines: usize) -> Result<Last, Gone> {
        let mut last = Last::default();
        let (mut breaks, mut bytes) = (0_usize, 0_usize);
        let count = |record: &Record| record.data.iter().filter(|byte| **byte == b'\n').count();
        for read in 1.. {
            let Some(record) = self.read().await? else { break };
            breaks += count(&record);
            bytes += record.data.len();
            last.kept.push_back(record);
            while let Some(oldest) = last.kept.front() {
                let without = breaks - count(oldest);
                if without <= lines && bytes <= TAIL_BYTES_MAX {
                    break;
                }
                (breaks, bytes) = (without, bytes - oldest.data.len());
                last.kept.pop_front();
                last.is_enough = true;
            }
            // The files are read on the agent's only thread.
            if read % RECORDS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        // The first of them may be the end of a line.
        last.is_enough |= breaks > lines;
        Ok(last)
    }

    async fn read(&mut self) -> Result<Option<Record>, Gone> {
        match self.reader.read_record() {
            Ok(record) => Ok(record),
            Err(error) => self.unreadable(&error).await,
        }
    }

    async fn unreadable<T>(&self, error: &std::io::Error) -> Result<T, Gone> {
        self.to.send(Frame::Error(format!("the log cannot be read: {error}"))).await?;
        Err(Gone)
    }
}

/// Cuts the beginning so that at most `lines` lines are left; a last one without its end counts too.
fn cut_to_lines(kept: &mut VecDeque<Record>, lines: usize) {
    let open_end = kept.back().is_some_and(|last| last.data.last() != Some(&b'\n'));
    let mut left = lines + usize::from(!open_end);
    for at in (0..kept.len()).rev() {
        let data = &kept[at].data;
        let mut end = data.len();
        while let Some(found) = data[..end].iter().rposition(|byte| *byte == b'\n') {
            left = left.saturating_sub(1);
            if left == 0 {
                kept[at].data.drain(..=found);
                kept.drain(..at);
                return;
            }
            end = found;
        }
    }
    if lines == 0 {
        kept.clear();
    }
}

/// Joins records of one stream into larger frames.
#[derive(Default)]
struct Joined {
    stream: Option<Stream>,
    data: Vec<u8>,
}

impl Joined {
    fn push(&mut self, stream: Stream, data: Vec<u8>) -> Option<Frame> {
        let fits = self.data.len() + data.len() <= FRAME_BYTES_MAX;
        if self.stream == Some(stream) && fits {
            self.data.extend_from_slice(&data);
            return None;
        }
        let full = self.rest();
        (self.stream, self.data) = (Some(stream), data);
        full
    }

    fn rest(&mut self) -> Option<Frame> {
        let data = std::mem::take(&mut self.data);
        if data.is_empty() {
            return None;
        }
        match self.stream? {
            Stream::Stdout => Some(Frame::Stdout(data)),
            Stream::Stderr => Some(Frame::Stderr(data)),
        }
    }
}

/// Passes the user's input on to the job until either side ends.
async fn feed(
    dir: &AllocationDir,
    mut phase: Option<watch::Receiver<AttemptPhase>>,
    from: &mut FromUser,
    to: &ToUser,
) {
    let Some(mut job) = attach(dir, &mut phase).await else { return };
    let (mut listening, mut draining) = (true, true);
    while listening || draining {
        let done = tokio::select! {
            frame = from.next(), if listening => match frame {
                Some(Frame::Stdin(bytes)) => job.send_input(&bytes).await,
                Some(Frame::StdinClosed(_)) => job.end_input().await,
                Some(Frame::Resize(size)) => job.resize(window(&size)).await,
                Some(_) => Ok(()),
                // Who went away may come back: the job's input stays open.
                None => { listening = false; Ok(()) }
            },
            // The log has it; read only so that the shim does not drop this connection.
            output = job.next_output(), if draining => { draining = output.is_ok(); Ok(()) }
            () = to.0.closed() => return,
        };
        if let Err(error) = done {
            tracing::debug!(dir = %dir.path().display(), %error, "input not passed on");
            return;
        }
    }
}

pub(super) fn window(size: &v1::WindowSize) -> WindowSize {
    let cells = |n: u32| u16::try_from(n.max(1)).unwrap_or(u16::MAX);
    WindowSize { rows: cells(size.rows), columns: cells(size.columns) }
}

/// Connects as soon as the job's shim is there.
async fn attach(
    dir: &AllocationDir,
    phase: &mut Option<watch::Receiver<AttemptPhase>>,
) -> Option<Attached> {
    loop {
        let ended = phase.as_ref().is_none_or(|phase| *phase.borrow() == AttemptPhase::Ended);
        if ended {
            return None;
        }
        if let Ok(client) = ShimClient::connect(dir.path()).await {
            return client.attach(true, false).await.ok();
        }
        sleep(STDIN_WAIT).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tail(pieces: &[&str], lines: usize) -> String {
        let mut kept: VecDeque<Record> = pieces
            .iter()
            .map(|text| Record { stream: Stream::Stdout, at_ms: 0, data: text.as_bytes().to_vec() })
            .collect();
        cut_to_lines(&mut kept, lines);
        kept.iter().map(|record| String::from_utf8(record.data.clone()).unwrap()).collect()
    }

    #[test]
    fn the_last_lines_are_found_across_pieces() {
        let pieces = ["a\nb", "b\nc", "c\n", "d\n"];
        assert_eq!(tail(&pieces, 1), "d\n");
        assert_eq!(tail(&pieces, 2), "cc\nd\n");
        assert_eq!(tail(&pieces, 3), "bb\ncc\nd\n");
        assert_eq!(tail(&pieces, 9), "a\nbb\ncc\nd\n");
        assert_eq!(tail(&["a\n", "b"], 1), "b");
        assert_eq!(tail(&["a\n", "b"], 2), "a\nb");
        assert_eq!(tail(&pieces, 0), "");
        assert_eq!(tail(&["x"], 0), "");
    }

    #[tokio::test]
    async fn the_last_lines_of_a_long_log_are_the_same_from_any_segment() {
        let dir = tempfile::tempdir().unwrap();
        let all: Vec<String> = (0..50).map(|number| format!("line {number}\n")).collect();
        // Seven bytes of each record, so that lines cross the ends of segments.
        let text = all.concat();
        let records: Vec<&[u8]> = text.as_bytes().chunks(7).collect();
        for (number, segment) in records.chunks(4).enumerate() {
            let mut bytes = Vec::new();
            for data in segment {
                bytes.push(Stream::Stdout.number());
                bytes.extend(7_u64.to_le_bytes());
                bytes.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
                bytes.extend(*data);
            }
            std::fs::write(dir.path().join(format!("{:08}.log", number + 1)), bytes).unwrap();
        }
        for lines in 0..=60 {
            let (to, mut frames) = tokio::sync::mpsc::channel(100);
            let reader = LogReader::new(dir.path().to_owned());
            let to = ToUser(to);
            let mut follower = Follower { reader, to: &to };
            follower.skip_to_tail(dir.path(), lines).await.unwrap();
            assert!(!follower.send_some().await.unwrap(), "it is at the end");
            drop(to);
            let mut sent = Vec::new();
            while let Some(v1::TunnelFrame { frame: Some(Frame::Stdout(data)) }) =
                frames.recv().await
            {
                sent.extend(data);
            }
            let wanted = all[all.len().saturating_sub(lines)..].concat();
            assert_eq!(String::from_utf8(sent).unwrap(), wanted, "{lines} lines");
        }
    }

    #[test]
    fn pieces_of_one_stream_travel_together_in_order() {
        let mut joined = Joined::default();
        assert!(joined.push(Stream::Stdout, b"a".to_vec()).is_none());
        assert!(joined.push(Stream::Stdout, b"b".to_vec()).is_none());
        assert_eq!(joined.push(Stream::Stderr, b"c".to_vec()), Some(Frame::Stdout(b"ab".to_vec())));
        assert_eq!(joined.rest(), Some(Frame::Stderr(b"c".to_vec())));
        assert_eq!(joined.rest(), None);
    }
}
