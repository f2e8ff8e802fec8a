//! A supervisor that holds a program's sockets while it is down, and says what happens, one line each:
//! `OUTLAST_PRELOAD_LIBRARY=.../liboutlast_preload.so supervise PROGRAM ARGUMENTS...`
#![allow(clippy::print_stdout, reason = "what it says is its output")]

use outlast_restart::supervisor::{Event, Hold, Outcome, Readiness, Settings, Supervisor};
use std::process::{Command, ExitCode};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let (program, arguments) = arguments.split_first().ok_or("no program")?;
    let library = std::env::var_os("OUTLAST_PRELOAD_LIBRARY").ok_or("no OUTLAST_PRELOAD_LIBRARY")?;
    let mut settings = Settings { name: "supervise".into(), hold: Some(Hold::Idle), ..Settings::default() };
    settings.readiness = Readiness::Board;
    settings.stop_timeout = Some(std::time::Duration::from_secs(10));
    settings.policy.intensity = 20;
    settings.backoff_max = std::time::Duration::from_millis(50);
    let supervisor = Supervisor::new(settings)?;
    let make = |_: outlast_restart::supervisor::Attempt<'_>| {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_PRELOAD", &library);
        command
    };
    let outcome = supervisor.run(make, |event| {
        if event != Event::Alive {
            println!("{event:?}");
        }
    })?;
    println!("{outcome:?}");
    let code = match outcome {
        Outcome::Finished => 0,
        Outcome::Stopped(death) | Outcome::GaveUp(death) | Outcome::Ended(death) => death.exit_code(),
        _ => 99,
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(99)))
}
