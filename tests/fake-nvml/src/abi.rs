//! How every exported function answers: return codes, out-pointers, strings, caught panics.
#![expect(unsafe_code, reason = "writes through pointers that C callers hand in")]

use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings as sys;

/// An NVML return code other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) sys::nvmlReturn_t);

impl Code {
    pub(crate) const UNINITIALIZED: Code = Code(sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    pub(crate) const INVALID_ARGUMENT: Code =
        Code(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    pub(crate) const NOT_SUPPORTED: Code = Code(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    pub(crate) const NOT_FOUND: Code = Code(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
    pub(crate) const INSUFFICIENT_SIZE: Code =
        Code(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    pub(crate) const DRIVER_NOT_LOADED: Code =
        Code(sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
    pub(crate) const TIMEOUT: Code = Code(sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT);
    pub(crate) const GPU_IS_LOST: Code = Code(sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    pub(crate) const VERSION_MISMATCH: Code =
        Code(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    pub(crate) const UNKNOWN: Code = Code(sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN);
}

/// Runs the body of an exported function; a panic becomes "unknown error".
pub(crate) fn answer(body: impl FnOnce() -> Result<(), Code>) -> sys::nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => sys::nvmlReturn_enum_NVML_SUCCESS,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Stores an answer; NULL is an invalid argument.
///
/// # Safety
/// `out` is NULL or points to writable memory for a `T`.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and writable by this function's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Reads a value the caller set; NULL is an invalid argument.
///
/// # Safety
/// `from` is NULL or points to a readable, initialised `T`.
pub(crate) unsafe fn get<T: Copy>(from: *const T) -> Result<T, Code> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and readable by this function's contract.
    Ok(unsafe { from.read() })
}

/// Stores `text` with its NUL, or says that the buffer is too short.
///
/// # Safety
/// `out` is NULL or points to `length` writable bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Result<(), Code> {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if text.len() >= usize::try_from(length).unwrap_or(0) {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: `text` and its NUL fit into the `length` bytes that `out` points to.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Reads a C string.
///
/// # Safety
/// `from` is NULL or points to a NUL-terminated string.
pub(crate) unsafe fn text(from: *const c_char) -> Result<String, Code> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and NUL-terminated by this function's contract.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map(str::to_owned).map_err(|_| Code::INVALID_ARGUMENT)
}

/// NVML's count-then-fill protocol: with too little room, store the count and say so.
///
/// # Safety
/// `count` is NULL or points to a `c_uint`; `items` is NULL or has room for `*count` items.
pub(crate) unsafe fn put_list<T: Copy>(
    count: *mut c_uint,
    items: *mut T,
    list: &[T],
) -> Result<(), Code> {
    // SAFETY: this function's contract.
    let room = usize::try_from(unsafe { get(count) }?).unwrap_or(0);
    let length = c_uint::try_from(list.len()).map_err(|_| Code::UNKNOWN)?;
    // SAFETY: `get` has just shown that `count` is not NULL.
    unsafe { put(count, length) }?;
    if list.is_empty() {
        return Ok(());
    }
    if room < list.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    if items.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: `items` has room for `*count` items, of which `list` takes no more.
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), items, list.len()) };
    Ok(())
}

/// Exports functions of the shape `f(device, *mut T)`: the body gives the value.
macro_rules! getters {
    ($($name:ident: $ty:ty = |$gpu:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            device: ::nvml_wrapper_sys::bindings::nvmlDevice_t,
            out: *mut $ty,
        ) -> ::nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::abi::answer(|| {
                let $gpu = $crate::state::gpu(device)?;
                let value: Result<$ty, $crate::abi::Code> = $body;
                // SAFETY: NVML's contract: `out` is NULL or points to a writable value.
                unsafe { $crate::abi::put(out, value?) }
            })
        }
    )*};
}
pub(crate) use getters;
