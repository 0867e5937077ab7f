//! Renders figures.
use std::path::Path;
use twostep::infer::{Budget, budget};
use twostep::monitor::Silent;
use twostep::report::{answer, png, surrogate, svg};
use twostep::run::Project;
use twostep::stream::Stream;
use twostep::study;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (file, folder, out) = (Path::new(&args[1]), Path::new(&args[2]), Path::new(&args[3]));
    let index: usize = args[4].parse().unwrap();
    let width: f64 = args.get(5).map_or(640.0, |w| w.parse().unwrap());
    let settings = study::load(file).unwrap_or_else(|p| panic!("{p}"));
    let settings = vec![settings.into_iter().nth(index).unwrap()];
    let project = Project::new(settings, folder.to_path_buf());
    let t = std::time::Instant::now();
    project.run(study::Stage::Infer, &Silent).unwrap();
    eprintln!("run {:?}", t.elapsed());
    let findings = project.findings(0).unwrap();
    let prepared = findings.prepared().unwrap();
    let t = std::time::Instant::now();
    let budgets: Vec<Result<Budget, String>> = findings
        .answers
        .iter()
        .map(|a| {
            let t = std::time::Instant::now();
            let b = budget(prepared.as_ref().unwrap(), &findings.study.infer, a, Stream::root(1));
            eprintln!("{} {:?}", a.method, t.elapsed());
            b
        })
        .collect();
    for b in &budgets {
        match b {
            Ok(b) => {
                for q in &b.quantities {
                    eprintln!(
                        "{:?} {} var {:.4e} noise {:.3}±{:.3} approx {:.3}±{:.3} epi {:.3}±{:.3}",
                        b.method,
                        q.name,
                        q.variance,
                        q.noise.share,
                        q.noise.error,
                        q.approximation.share,
                        q.approximation.error,
                        q.epistemic.share,
                        q.epistemic.error
                    )
                }
            }
            Err(e) => eprintln!("{e}"),
        }
    }
    eprintln!("budgets {:?}", t.elapsed());
    let known: Vec<&Budget> = budgets.iter().flatten().collect();
    let t = std::time::Instant::now();
    let mut figures = answer::figures(&findings, &known).unwrap();
    figures.extend(surrogate::figures(&findings).unwrap());
    eprintln!("figures {:?}", t.elapsed());
    std::fs::create_dir_all(out).unwrap();
    let mut sum = 0;
    for f in &figures {
        let s = svg(f, width);
        sum += s.len();
        eprintln!("{}: {} bytes\n    {}", f.id, s.len(), f.caption);
        std::fs::write(out.join(format!("{}.svg", f.id)), &s).unwrap();
        std::fs::write(out.join(format!("{}.png", f.id)), png(&s, 1.5).unwrap()).unwrap();
        f.table().unwrap();
    }
    eprintln!("total {sum}");
}
