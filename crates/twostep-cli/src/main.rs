//! tmp
fn main() {
    let p = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    let s = twostep::study::load(&p).unwrap_or_else(|e| panic!("{e}"));
    let pr = twostep::run::Project::new(s, std::path::PathBuf::from(std::env::args().nth(2).unwrap()));
    let t = std::time::Instant::now();
    let r = pr.run(twostep::study::Stage::Infer, &twostep::monitor::Silent).unwrap();
    eprintln!("{:?}", t.elapsed());
    for x in r {
        eprintln!("{:?} {:?}", x.label, x.origins);
        for p in x.posteriors {
            for u in &p.unknowns {
                eprintln!("{} {} {:.4} {:.4} [{:.4} {:.4}] {}", p.method, u.name, u.mean, u.sd, u.q05, u.q95, p.trust);
            }
        }
        for w in x.warnings {
            eprintln!("  ! {w}");
        }
    }
}
