//! The functions of the C library that this library stands before. Each does what the program asked for, and tells the
//! rest what that was; none waits, locks or allocates more than it has to, and all leave `errno` as the C library set it.
//! What waits for clients (`epoll_wait`, `poll`, `select`), and what makes processes, is left alone. What executes programs is
//! looked at: see `environment`; what an epoll is told to watch is noted: see `watches`.

mod io;
mod programs;
mod sockets;

/// The dynamic linker calls it before the program begins, which may change its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    crate::holder::look_for();
    crate::marks::begin();
    crate::sys::execute::find_own();
    // It tells of what has begun.
    crate::bound::begin();
}

/// Defines functions of the C library by their C names. In `body`, `next` is the C library's own function, which is looked
/// for before the program begins: in a signal handler, or in a child of a process with threads, the linker may be locked.
///
/// They may be unwound: threads are cancelled in them.
macro_rules! hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $next:ident => $body:expr;)*) => {$(
        /// See the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            extern "C" fn find() {
                NEXT.get();
            }
            /// As `START`.
            #[used]
            #[unsafe(link_section = ".init_array")]
            static FIND: extern "C" fn() = find;
            static NEXT: $crate::sys::Next = $crate::sys::Next::new(
                // The name and a zero.
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );
            let $next = |$($argument: $type),*| -> $result {
                let Some(next) = NEXT.get() else {
                    $crate::sys::set_errno(libc::ENOSYS);
                    return -1;
                };
                type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
                // SAFETY: the C library's function of this name has this type.
                let next = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(next.as_ptr()) };
                // SAFETY: with what the program gave, or what is as good.
                unsafe { next($($argument),*) }
            };
            $body
        }
    )*};
}
use hooks;
