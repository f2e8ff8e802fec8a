//! Files that are right, and files that are wrong.

use super::*;
use clap::ArgAction;

fn parse(text: &str) -> Result<Vec<Job>> {
    let (file, faults) = ConfigFile::parse(Path::new("f.toml"), text)?;
    match faults.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(file.jobs()?.into_iter().map(|(_, job)| job).collect()),
    }
}

fn parsed(text: &str) -> ConfigFile {
    ConfigFile::parse(Path::new("f.toml"), text).unwrap().0
}

fn complaint(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// A value that the flag takes.
fn sample(id: &str) -> &'static str {
    match id {
        "to" | "via" | "socks5" | "http_connect" | "transparent" | "metrics" => "\"127.0.0.1:1\"",
        "address" => "\"unix:/tmp/x\"",
        "allow_to" | "deny_to" | "allow" | "deny" => "[\"10.0.0.0/8\", \"192.0.2.1\"]",
        "keep" | "detect" | "patience" | "drain_timeout" | "hand_over_timeout" => "\"1h\"",
        "retain" => "\"1M\"",
        "memory" => "\"64M\"",
        "max_sessions" | "max_sessions_per_address" => "7",
        "ack" => "\"inband\"",
        "bind_from" => "\"127.0.0.1\"",
        "log" => "\"debug\"",
        "log_format" => "\"json\"",
        "program" => "[\"./server\", \"--port\", \"80\", \"--\", \"-x\"]",
        "restart" | "preload" => "\"never\"",
        "keep_connections" => "\"listeners\"",
        "success_codes" => "[0, 143, \"HUP\"]",
        "intensity" | "log_keep" | "nice" | "oom_score_adjust" => "7",
        "window" | "transient_after" | "backoff_min" | "backoff_max" | "hang_timeout" | "stop_timeout"
        | "start_timeout" | "watchdog" => "\"2s\"",
        "stop_signal" => "\"QUIT\"",
        "log_size" => "\"1M\"",
        "limit" => "[\"nofile=1000:2K\", \"core=0\"]",
        "environment" => "[\"A=b=c\", \"D=\"]",
        _ => "\"text\"",
    }
}

/// Flags that contradict each other are tried apart; those that need others are tried with them.
fn companions(id: &str) -> &'static str {
    match id {
        "allow_to" | "deny_to" => "to-any = true\n",
        "tls_client_ca" => "tls-cert = \"a\"\ntls-key = \"b\"\n",
        "tls_ca" | "tls_name" => "tls = true\n",
        "watchdog" => "notify = true\n",
        "log_size" | "log_keep" => "log-to = \"x\"\n",
        _ => "",
    }
}

#[test]
fn every_flag_of_listen_connect_and_run_is_a_key() {
    for name in ["listen", "connect", "run"] {
        for argument in subcommand(name).get_arguments() {
            let id = argument.get_id().as_str();
            if matches!(id, "help" | "version") {
                continue;
            }
            let key = argument.get_long().unwrap_or(id);
            let value = match argument.get_action() {
                ArgAction::SetTrue => "true",
                _ => sample(id),
            };
            let extra = match (name, id) {
                (_, "tls_cert") => "tls-key = \"k\"\ntls = true\n",
                (_, "tls_key") => "tls-cert = \"k\"\ntls = true\n",
                _ => companions(id),
            };
            let extra = if name == "listen" { extra.replace("tls = true\n", "") } else { extra.to_owned() };
            let text = format!("[[{name}]]\n{extra}{key} = {value}\n");
            let jobs = parse(&text).unwrap_or_else(|error| panic!("{text}{error}"));
            let told = format!("{:?}", jobs[0]);
            // A certificate without its key, or the other way round, is refused: no silence to compare with.
            if let Ok(silent) = parse(&format!("[[{name}]]\n{extra}")) {
                assert_ne!(told, format!("{:?}", silent[0]), "{key} changes nothing");
            }
        }
    }
}

#[test]
fn every_flag_of_the_process_is_a_key_at_the_top() {
    for argument in Cli::command().get_arguments() {
        let id = argument.get_id().as_str();
        if matches!(id, "help" | "version" | "config") {
            continue;
        }
        let key = argument.get_long().unwrap();
        let value = match argument.get_action() {
            ArgAction::SetTrue => "true",
            _ => sample(id),
        };
        let file = parsed(&format!("{key} = {value}\n"));
        let told = file.process(&ArgMatches::default()).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_ne!(format!("{told:?}"), format!("{:?}", ProcessArgs::default()), "{key} changes nothing");
    }
}

#[test]
fn a_file_and_its_flags_mean_the_same() {
    let text =
        "[[connect]]\naddress = '127.0.0.1:5'\nvia = ['a:1', '*.b=c:2']\npatience = '30s'\ntls = true\n";
    let Job::Connect(from_file) = parse(text).unwrap().remove(0) else { panic!() };
    let flags = "outlast connect 127.0.0.1:5 --via a:1 --via *.b=c:2 --patience 30s --tls";
    let matches = Cli::command().try_get_matches_from(flags.split(' ')).unwrap();
    let Some(Command::Connect(from_flags)) = Cli::from_arg_matches(&matches).unwrap().command else {
        panic!()
    };
    assert_eq!(format!("{from_file:?}"), format!("{from_flags:?}"));
}

#[test]
fn a_program_is_not_given_what_nobody_knows() {
    for key in ["bogus", "hang_timeout", "address", "Hang-Timeout"] {
        let said = complaint(&format!("[[run]]\nprogram = ['true']\n{key} = 'x'\n"));
        assert!(said.contains(&format!("unknown key {key:?}")), "{said}");
    }
}

#[test]
fn a_program_and_its_arguments_are_a_list_and_its_command_line_means_the_same() {
    let text = "log = 'info'\nmetrics = '127.0.0.1:1'\n[[run]]\nprogram = ['sh', '-c', '--', 'x y']\n\
                success-codes = [0, 143]\nnice = -3\nlimit = ['core=0', 'nofile=9']\n";
    let file = parsed(text);
    let Job::Run(from_file) = file.jobs().unwrap().remove(0).1 else { panic!() };
    assert_eq!(from_file.program, ["sh", "-c", "--", "x y"]);
    let line = file.command_lines(&ArgMatches::default()).remove(0);
    assert!(line.contains(&"--log=info".into()) && !line.contains(&"--metrics=127.0.0.1:1".into()));
    let matches = Cli::command().try_get_matches_from([OsString::from("outlast")].into_iter().chain(line));
    let Some(Command::Run(from_line)) = Cli::from_arg_matches(&matches.unwrap()).unwrap().command else {
        panic!()
    };
    assert_eq!(format!("{from_file:?}"), format!("{from_line:?}"));
    let given = "outlast run --nice 5 -- other --nice 6";
    let matches = Cli::command().try_get_matches_from(given.split(' ')).unwrap();
    let Job::Run(run) = file.job_for("run", matches.subcommand().unwrap().1).unwrap() else { panic!() };
    assert_eq!(
        (run.program, run.surroundings.nice),
        (vec!["other".into(), "--nice".into(), "6".into()], Some(5))
    );
}

#[test]
fn flags_take_precedence_over_the_file() {
    let text = "log = 'info'\n[[listen]]\naddress = 'a:1'\nto = 'b:2'\nkeep = '1h'\nallow = ['10.0.0.0/8']\n";
    let file = parsed(text);
    let given = "outlast listen --keep 2h --allow 192.0.2.0/24 --log debug";
    let matches = Cli::command().try_get_matches_from(given.split(' ')).unwrap();
    let (name, matches_of) = matches.subcommand().unwrap();
    let Job::Listen(listen) = file.job_for(name, matches_of).unwrap() else { panic!() };
    assert_eq!(listen.address.as_deref(), Some("a:1"));
    assert_eq!(listen.keep, Some(std::time::Duration::from_secs(7200)));
    assert_eq!(
        format!("{:?}", listen.allow.iter().map(ToString::to_string).collect::<Vec<_>>()),
        "[\"192.0.2.0/24\"]"
    );
    assert_eq!(file.process(&matches).unwrap().log.as_deref(), Some("debug"));
}

#[test]
fn mistakes_are_reported_with_their_line() {
    for (text, expected) in [
        ("[[listen]]\nadress = 'a:1'\n", "f.toml:2: unknown key \"adress\""),
        (
            "[[connect]]\n\npatiance = '1s'\n",
            "f.toml:3: unknown key \"patiance\"; did you mean \"patience\"?",
        ),
        ("[[listen]]\nkeep = 'long'\n", "f.toml:2: invalid value 'long' for 'keep "),
        ("[[lisen]]\nto = 'a:1'\n", "f.toml:1: there is no section [[lisen]]; did you mean [[listen]]?"),
        ("[other]\nx = 1\n", "f.toml:1: there is no section [[other]], only"),
        ("[[listen]]\nto = 5\n", "f.toml:2: "),
        ("[[listen]]\nlog = 'info'\n", "f.toml:2: \"log\" belongs at the top"),
        ("[listen]\nto = 'a:1'\n", "f.toml:1: write [[listen]] instead of [listen]"),
        ("[[listen]]\nto-any = 'yes'\n", "f.toml:2: \"to-any\" is true or false"),
        (
            "[[listen]]\ndrain_timeout = '1s'\n",
            "f.toml:2: unknown key \"drain_timeout\"; did you mean \"drain-timeout\", which belongs at the top",
        ),
        ("[[listen]]\nto = { a = 1 }\n", "f.toml:2: \"to\" is a text, a number or a list"),
        ("[[listen]]\nconfig = 'x'\n", "f.toml:2: unknown key \"config\""),
        ("[[listen]]\nx = \n", "f.toml:2: "),
        ("[[listen]]\nto = 'a:1'\nto = 'b:1'\n", "f.toml:3: the key \"to\" is given twice"),
        ("[[listen]]\nto = 'a:1'\nto-any = true\n", "f.toml:"),
    ] {
        let said = complaint(text);
        assert!(said.starts_with(expected) && !said.contains('\n'), "{text:?}: {said}");
    }
    assert!(complaint("log = 'info'\n").contains("nothing to do"));
}

#[test]
fn mistakes_at_the_top_say_what_was_meant() {
    for (text, expected) in [
        ("LOG = 'info'\n", "f.toml:1: unknown key \"LOG\"; did you mean \"log\"?"),
        (
            "metrics = '127.0.0.1:91000'\n",
            "f.toml:1: invalid value '127.0.0.1:91000' for 'metrics <ADDRESS>': \"127.0.0.1:91000\" is no address",
        ),
    ] {
        let faults = parsed(text).process_or_all_faults(&ArgMatches::default()).unwrap_err();
        assert!(faults[0].to_string().starts_with(expected), "{faults:?}");
    }
}

#[test]
fn a_wrong_address_hides_no_wrong_network() {
    let text = "[[listen]]\nadress = '0.0.0.0:7000'\nto = 'a:1'\nallow = ['10.0.0.0/33']\n";
    let (file, _) = ConfigFile::parse(Path::new("f.toml"), text).unwrap();
    let said: Vec<String> = file.plan_all(Ok).1.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].contains("adress") && said[1].starts_with("f.toml:4: "), "{said:#?}");
}

#[test]
fn the_port_of_the_metrics_is_no_other_one() {
    let text = "metrics = '127.0.0.1:7000'\n[[listen]]\naddress = '127.0.0.1:7000'\nto = 'a:1'\n";
    let said: Vec<String> = parsed(text).repeated_addresses().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        ["f.toml:1: the metrics and a section listen on 127.0.0.1:7000: choose another port for one"]
    );
}

#[test]
fn an_address_of_a_port_that_another_section_has_at_all_addresses_is_taken() {
    let section = |address: &str| format!("[[listen]]\naddress = '{address}'\nto = 'a:1'\n");
    let said = |one: &str, other: &str| {
        let faults = parsed(&(section(one) + &section(other))).repeated_addresses();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (one, other) in
        [("0.0.0.0:7000", "127.0.0.1:7000"), ("192.0.2.1:7000", "0.0.0.0:7000"), ("[::]:7000", "[::1]:7000")]
    {
        let at_all = |address: &str| address.starts_with("0.0.0.0:") || address.starts_with("[::]:");
        let which = if at_all(one) { ", which is all addresses" } else { "" };
        let why =
            format!("f.toml:5: two sections listen on {other} and {one}{which}: choose another port for one");
        assert_eq!(said(one, other), [why]);
    }
    for (one, other) in [
        ("0.0.0.0:7000", "127.0.0.1:7001"),
        ("127.0.0.1:7000", "127.0.0.2:7000"),
        ("0.0.0.0:0", "127.0.0.1:0"),
    ] {
        assert!(said(one, other).is_empty(), "{one} {other}");
    }
}

#[test]
fn one_address_for_metrics_is_not_for_several_programs() {
    let run = |name: &str| format!("[[run]]\nname = '{name}'\nprogram = 'true'\n");
    let listen = "[[listen]]\naddress = '127.0.0.1:7000'\nto = 'a:1'\n";
    let said = |text: String| {
        let fault =
            parsed(&format!("log = 'info'\nmetrics = '127.0.0.1:1'\n{text}")).metrics_of_several_programs();
        fault.map(|fault| fault.to_string())
    };
    assert_eq!(said(run("a")), None);
    assert_eq!(said(run("a") + &run("b") + listen), None);
    assert_eq!(said(run("a") + &run("b")), Some(format!("f.toml:2: {SEVERAL_PROGRAMS}")));
    assert!(parsed(&(run("a") + &run("b"))).metrics_of_several_programs().is_none());
}

#[test]
fn the_metrics_of_relays_are_not_those_of_a_program_beside_them() {
    let run = "metrics = '127.0.0.1:1'\n[[run]]\nprogram = 'true'\n";
    let both = format!("{run}[[listen]]\naddress = '127.0.0.1:7000'\nto = 'a:1'\n");
    for (text, line, expected) in [
        (run, "outlast run", Some("127.0.0.1:1")),
        (&both, "outlast run", None),
        (&both, "outlast run --metrics 127.0.0.1:2", Some("127.0.0.1:2")),
    ] {
        let given = Cli::command().try_get_matches_from(line.split(' ')).unwrap();
        let metrics = parsed(text).process_of_run(&given).unwrap().metrics;
        assert_eq!(metrics.map(|address| address.to_string()).as_deref(), expected, "{line}: {text}");
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = "lgo = 'info'\n[[lisen]]\n[[listen]]\nadress = 'a:1'\nkeep = 'long'\nto = { a = 1 }\n\
                [[run]]\nprogram = 'true'\nwindow = '2s'\nlimit = 'nofile=few'\nmetrics = 'x'\n";
    let (file, mut faults) = ConfigFile::parse(Path::new("f.toml"), text).unwrap();
    faults.extend(file.process_or_all_faults(&ArgMatches::default()).err().into_iter().flatten());
    faults.extend(file.plan_all(Ok).1);
    let mut said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    said.sort_by_key(|line| line.split(':').nth(1).unwrap().parse::<usize>().unwrap());
    let expected = [
        "f.toml:1: unknown key \"lgo\"; did you mean \"log\"?",
        "f.toml:2: there is no section [[lisen]]",
        "f.toml:4: unknown key \"adress\"; did you mean \"address\"?",
        "f.toml:5: invalid value 'long'",
        "f.toml:6: \"to\" is a text",
        "f.toml:10: ",
        "f.toml:11: \"metrics\" belongs at the top",
    ];
    assert_eq!(said.len(), expected.len(), "{said:#?}");
    assert!(said.iter().zip(expected).all(|(said, expected)| said.starts_with(expected)), "{said:#?}");
    assert!(said.iter().all(|line| !line.contains("--")), "{said:#?}");
}
