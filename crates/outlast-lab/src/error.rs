//! What can go wrong in the lab, and what to do about it.

use std::io;

use crate::available::Unavailable;

/// Why the lab could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine cannot run a lab.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),

    /// A fault was asked for that the target has no part for.
    #[error("fault `{fault}` needs {needs}; {remedy}")]
    TargetLacks {
        /// The fault as it prints.
        fault: String,
        /// The part that is missing.
        needs: &'static str,
        /// How to supply it.
        remedy: &'static str,
    },

    /// A fault, schedule or quantity that cannot be read.
    #[error("cannot read `{text}`: {why}")]
    Syntax {
        /// What was given.
        text: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },

    /// A name or value that the lab does not accept.
    #[error("{0}")]
    Invalid(String),

    /// A helper program failed.
    #[error("`{command}` failed ({status}): {stderr}")]
    Program {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// What it said.
        stderr: String,
    },

    /// The kernel refused.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The result of everything in the lab.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Names what was being done when a system call failed.
pub(crate) trait Context<T> {
    /// Adds `what` to the error.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::System { what: what(), source })
    }
}
