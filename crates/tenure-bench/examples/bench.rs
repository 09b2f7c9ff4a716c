//! Driver.
fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut o = tenure_bench::Options::default();
    let mut names = vec![];
    for a in args {
        if a == "--quick" {
            o.quick = true
        } else if let Some(x) = a.strip_prefix("--json=") {
            o.json = Some(x.into())
        } else if let Some(x) = a.strip_prefix("--filter=") {
            o.filter = Some(x.into())
        } else if let Some(x) = a.strip_prefix("--rounds=") {
            o.rounds = Some(x.parse().unwrap())
        } else if let Some(x) = a.strip_prefix("--threads=") {
            o.threads = x.split(',').map(|x| x.parse().unwrap()).collect()
        } else {
            names.push(a)
        }
    }
    tenure_bench::run(&names, &o)
}
