//! XIDs: what the driver's error numbers mean, and what to do, one row per number.
//!
//! Two columns, because NVIDIA's published catalogue is for Ampere and later and points elsewhere for
//! older cards. `legacy` (Maxwell, Pascal, Volta) is our proposal from gpud's legacy map, DCGM's
//! health watch, Azure's node-failure list and k8s-device-plugin's list of program errors; `modern`
//! follows the catalogue's immediate action: restart app = Program, ignore = Ignored, reset = Degraded,
//! reboot = Fatal. Turing takes `legacy`, and `modern` where `legacy` does not apply.

use super::Severity;
use crate::gpu::Architecture;

/// What to do about one XID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// This number says nothing on cards of this generation; treated as [`Verdict::Device`].
    NotApplicable,
    /// Follows from another XID, or needs nothing: never acts.
    Ignored,
    /// Worth a Notice, whatever the number of repeats.
    Notice,
    /// A program's error until it repeats too often on one GPU.
    Program,
    /// Worth a Notice once; the device is suspect when it repeats.
    Device,
    /// Must leave, work still good.
    Degraded,
    /// Work already lost.
    Fatal,
}

impl Verdict {
    /// The severity of a single occurrence.
    pub fn severity(self) -> Option<Severity> {
        match self {
            Self::Ignored => None,
            Self::NotApplicable | Self::Notice | Self::Program | Self::Device => {
                Some(Severity::Notice)
            }
            Self::Degraded => Some(Severity::Degraded),
            Self::Fatal => Some(Severity::Fatal),
        }
    }
}

/// One XID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub code: u32,
    pub meaning: &'static str,
    pub legacy: Verdict,
    pub modern: Verdict,
    /// What helps, for people.
    pub advice: &'static str,
}

const PROGRAM: &str =
    "look at the program first; if other programs meet it on this GPU, at the GPU";
const RESET: &str = "reset the GPU when it is empty";
const REBOOT: &str = "reset the GPU when it is empty, then reboot if it comes back";
const SUPPORT: &str = "have the card checked";
const RECOVERY: &str = "`nvidia-smi -q` names it: GPU Recovery Action";
/// What helps where the number says nothing.
pub const KERNEL_LOG: &str = "see the kernel log";

/// What NVML says for an XID that it does not know (`nvmlEventData_t`).
pub const UNNUMBERED: u32 = 999;

const fn row(
    code: u32,
    meaning: &'static str,
    legacy: Verdict,
    modern: Verdict,
    advice: &'static str,
) -> Row {
    Row { code, meaning, legacy, modern, advice }
}

/// By number.
pub const TABLE: [Row; 33] = {
    use Verdict::{Degraded, Device, Fatal, Ignored, NotApplicable, Notice, Program};
    [
        row(8, "channel idle timeout", Program, Program, PROGRAM),
        row(13, "graphics engine exception", Program, Program, PROGRAM),
        row(31, "GPU memory page fault", Program, Program, PROGRAM),
        row(32, "invalid or corrupted push buffer", Device, Program, RESET),
        row(38, "driver firmware error", Device, Ignored, RESET),
        row(43, "GPU stopped processing a program's channel", Program, Ignored, PROGRAM),
        row(44, "context switch fault", Device, Ignored, RESET),
        row(45, "preemptive cleanup after another error", Ignored, Ignored, "see the other error"),
        row(46, "GPU stopped processing (timeout)", Degraded, Degraded, RESET),
        row(48, "double-bit ECC error", Fatal, Fatal, "reset the GPU, then check retired pages"),
        row(54, "auxiliary power is not connected", Degraded, Degraded, "check the power cables"),
        row(56, "display engine error", Degraded, Device, SUPPORT),
        row(57, "error programming the video memory interface", Degraded, Device, SUPPORT),
        row(58, "unstable video memory interface", Degraded, Device, SUPPORT),
        row(61, "internal micro-controller breakpoint", Degraded, Device, REBOOT),
        row(62, "internal micro-controller halt", Degraded, Degraded, REBOOT),
        row(63, "memory page retired or row remapped", Notice, Notice, RESET),
        row(64, "could not record a retired page or remapped row", Degraded, Degraded, REBOOT),
        row(65, "video processor exception", Device, Device, RESET),
        row(68, "video decoder exception", Program, Program, PROGRAM),
        row(69, "graphics engine class error", Program, Program, PROGRAM),
        row(74, "NVLink error", Degraded, Degraded, "reset the GPU and all GPUs linked to it"),
        row(79, "GPU has fallen off the bus", Fatal, Fatal, "reboot; power-cycle if it returns"),
        row(92, "high rate of single-bit ECC errors", Notice, Notice, "watch the retired pages"),
        row(93, "InfoROM wears out", Notice, Ignored, SUPPORT),
        row(94, "contained memory error", NotApplicable, Device, RESET),
        row(95, "uncontained memory error", NotApplicable, Fatal, RESET),
        row(109, "context switch timeout", Device, Degraded, RESET),
        row(119, "GPU system processor does not answer", NotApplicable, Degraded, REBOOT),
        row(120, "GPU system processor error", NotApplicable, Degraded, REBOOT),
        row(140, "unrecovered ECC error", NotApplicable, Degraded, RESET),
        // Comes beside the error that asks for the action.
        row(154, "GPU recovery action changed", NotApplicable, Notice, RECOVERY),
        // Different errors have it, so two of them are no repeat.
        row(UNNUMBERED, "an error that the driver gives no number", Notice, Notice, KERNEL_LOG),
    ]
};

/// Errors after which the programs on the GPU end, or must: by the catalogue's immediate action, and by NVIDIA's page on
/// memory error management for 94 and 95, where the driver ends them by design. Not heat, power or a program's own errors.
const ENDS_PROGRAMS: [u32; 12] = [46, 48, 61, 62, 64, 74, 79, 94, 95, 109, 119, 120];

/// Whether a program that dies beside this error most likely died of it.
pub fn ends_programs(code: u32) -> bool {
    ENDS_PROGRAMS.contains(&code)
}

/// The row of a number.
pub fn find(code: u32) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.code == code)
}

/// What to do about an XID on a card of this generation. Numbers that are not in the table are
/// taken seriously only when they repeat.
pub fn verdict(code: u32, architecture: Architecture) -> Verdict {
    let Some(row) = find(code) else { return Verdict::Device };
    let verdict = match architecture {
        Architecture::Maxwell | Architecture::Pascal | Architecture::Volta => row.legacy,
        Architecture::Turing if row.legacy == Verdict::NotApplicable => row.modern,
        Architecture::Turing => row.legacy,
        Architecture::Ampere | Architecture::Hopper | Architecture::Other => row.modern,
    };
    if verdict == Verdict::NotApplicable { Verdict::Device } else { verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_has_each_number_once() {
        assert!(TABLE.windows(2).all(|pair| pair[0].code < pair[1].code));
    }

    #[test]
    fn generations_differ_where_the_catalogue_does() {
        use Architecture::{Ampere, Maxwell, Turing, Volta};
        let cases = [
            (48, Volta, Verdict::Fatal),
            (79, Maxwell, Verdict::Fatal),
            (45, Volta, Verdict::Ignored),
            (43, Volta, Verdict::Program),
            (43, Ampere, Verdict::Ignored),
            (63, Volta, Verdict::Notice),
            (64, Volta, Verdict::Degraded),
            (95, Volta, Verdict::Device),
            (95, Ampere, Verdict::Fatal),
            (119, Volta, Verdict::Device),
            (119, Turing, Verdict::Degraded),
            (61, Turing, Verdict::Degraded),
            (61, Ampere, Verdict::Device),
            (154, Ampere, Verdict::Notice),
            (154, Volta, Verdict::Device),
            (UNNUMBERED, Ampere, Verdict::Notice),
            (12_345, Volta, Verdict::Device),
        ];
        for (code, architecture, wanted) in cases {
            assert_eq!(verdict(code, architecture), wanted, "XID {code} on {architecture:?}");
        }
    }
}
