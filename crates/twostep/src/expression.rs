//! Maps the text of a formula to a program for its values, or those of a partial derivative, for many draws at once.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use exmex::{BinOp, Calculate, Differentiate, Express, FlatEx, MakeOperators, MatchLiteral, Operator};

use crate::error::{Error, Result};
use crate::kernels;

const FUNCTIONS: [&str; 9] = ["exp", "log", "ln", "sqrt", "sin", "cos", "tan", "tanh", "abs"];
// The parser has no rule for the derivative of `abs`, but one that says sinh' = cosh: by these names it finds abs' =
// sign.
const ABS: &str = "sinh";
const SIGN: &str = "cosh";
const CONSTANTS: [(&str, f64); 2] = [("pi", std::f64::consts::PI), ("e", std::f64::consts::E)];

// Differentiation by the parser recurses once per operation with about 100 KiB of stack each (a sum of 50 terms
// overflows the 2 MiB of a spawned thread) and takes time with the cube of the length (a product of 150 factors: 2 s).
// Hence a limit on the length and a stack that suffices for it several times; it is only mapped as far as it is used.
const MOST_TOKENS: usize = 300;
const DERIVATIVE_STACK: usize = 256 << 20;

// Draws per walk over the program: long enough that decoding an instruction costs nothing beside its arithmetic, short
// enough that the registers of a usual formula stay in the first-level cache (30 registers x 64 draws: 15 KiB).
const BLOCK: usize = 64;

type Source = FlatEx<Term, Operators, Literals>;

/// Value of one variable for a batch of draws.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// The same for every draw.
    Scalar(f64),
    /// One value per draw.
    Slice(&'a [f64]),
}

/// An arithmetic expression of named variables.
///
/// Understands `+ - * / ^`, parentheses, the functions `exp log ln sqrt sin cos tan tanh abs` (`log` is the natural
/// one) and the constants `pi` and `e`. Precedence is that of mathematics: `-x^2` is `-(x^2)` and `2^3^2` is `2^(3^2)`.
#[derive(Clone, Debug)]
pub struct Expression {
    variables: Vec<String>,
    source: Source,
    program: Vec<Instruction>,
}

impl Expression {
    /// Reads `text`; arguments are given later in the order of `variables`, which may hold more names than occur.
    ///
    /// # Errors
    /// A name that is neither a variable, a function nor a constant; a variable in use that is named like a function or
    /// constant; anything that is not an arithmetic expression, with the column where reading stopped.
    pub fn parse(text: &str, variables: &[&str]) -> Result<Self> {
        let tokens = tokenize(text)?;
        check_names(text, &tokens, variables)?;
        check_order(text, &tokens)?;
        let tokens = tokens.iter().map(|token| token.text).collect();
        let source = FlatEx::parse(&respell(tokens, variables)).map_err(|problem| {
            Error::invalid(place(text), problem.to_string(), "correct the expression as described")
        })?;
        Self::assemble(source, variables.iter().map(|name| (*name).to_owned()).collect())
    }

    fn assemble(source: Source, variables: Vec<String>) -> Result<Self> {
        let index = |name: &String| variables.iter().position(|variable| variable == name);
        let arguments: Vec<Term> = source.var_names().iter().filter_map(index).map(Term::Variable).collect();
        let term = source.eval(&arguments).map_err(|problem| {
            Error::failed("expression", problem.to_string(), "write the expression in a simpler form")
        })?;
        let mut program = Vec::new();
        term.emit(&mut program);
        Ok(Self { variables, source, program })
    }

    /// Names of the arguments, in their order.
    pub fn variables(&self) -> &[String] {
        &self.variables
    }

    /// Indices of the variables that the value depends on, ascending.
    pub fn variables_used(&self) -> Vec<usize> {
        let variable = |instruction: &Instruction| match instruction {
            Instruction::Variable(index) => Some(*index),
            _ => None,
        };
        self.program.iter().filter_map(variable).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The partial derivative with respect to `variable`, taking the same arguments; zero where it does not occur.
    ///
    /// Finite where the mathematics has a limit of 0 but an intermediate value overflows; 0 at the kink of `abs`.
    ///
    /// # Errors
    /// If `variable` is not one of those given to [`Expression::parse`], or if this is the derivative of an `abs`
    /// already.
    pub fn derivative(&self, variable: &str) -> Result<Self> {
        if !self.variables.iter().any(|name| name == variable) {
            let known = self.variables.iter().map(String::as_str).collect();
            return Err(unknown_name("derivative of an expression", variable, known));
        }
        if self.program.iter().any(|instruction| matches!(instruction, Instruction::Unary(Function::Sign, _))) {
            let problem = "`abs` has no second derivative";
            return Err(Error::failed("derivative of an expression", problem, "use a smooth function"));
        }
        let source = match self.source.var_names().iter().position(|name| name == variable) {
            Some(index) => differentiate(self.source.clone(), index)?,
            None => FlatEx::from_num(Term::Number(0.0)),
        };
        let mut derivative = Self::assemble(source, self.variables.clone())?;
        for instruction in &mut derivative.program {
            if let Instruction::Binary(operation, ..) = instruction {
                *operation = match *operation {
                    Operation::Multiply => Operation::LimitMultiply,
                    Operation::Divide => Operation::LimitDivide,
                    other => other,
                };
            }
        }
        Ok(derivative)
    }

    /// `out[s]` = value with variable `k` at `argument(k)`, for every draw `s`; slices have the length of `out`.
    ///
    /// `registers` is working space, allocated only where it is too small. Draws do not influence each other: the value
    /// of a draw is the same to the last bit in any batch.
    ///
    /// # Panics
    /// If a slice is shorter than `out`.
    pub fn eval<'a>(&self, argument: impl Fn(usize) -> Argument<'a>, out: &mut [f64], registers: &mut Vec<f64>) {
        let stride = BLOCK.min(out.len());
        if registers.len() < self.program.len() * stride {
            registers.resize(self.program.len() * stride, 0.0);
        }
        let n_draws = out.len();
        for first in (0..n_draws).step_by(BLOCK) {
            let n = BLOCK.min(n_draws - first);
            for (k, instruction) in self.program.iter().enumerate() {
                let (done, rest) = registers.split_at_mut(k * stride);
                // The last instruction is the value itself.
                let target = if k + 1 == self.program.len() { &mut out[first..first + n] } else { &mut rest[..n] };
                let register = |j: usize| &done[j * stride..j * stride + n];
                match *instruction {
                    Instruction::Number(value) => target.fill(value),
                    Instruction::Variable(index) => match argument(index) {
                        Argument::Scalar(value) => target.fill(value),
                        Argument::Slice(values) => target.copy_from_slice(&values[first..first + n]),
                    },
                    Instruction::Unary(function, a) => function.apply(register(a), target),
                    Instruction::Binary(operation, a, b) => operation.apply(register(a), register(b), target),
                }
            }
        }
    }

    /// The value at one point: `values[k]` is that of variable `k`. Allocates; use [`Expression::eval`] in loops.
    pub fn eval_scalar(&self, values: &[f64]) -> f64 {
        let mut out = [0.0];
        self.eval(|k| Argument::Scalar(values[k]), &mut out, &mut Vec::new());
        out[0]
    }
}

fn differentiate(source: Source, index: usize) -> Result<Source> {
    let fail = |problem: String| Error::failed("derivative of an expression", problem, "write it in a simpler form");
    let thread = std::thread::Builder::new().stack_size(DERIVATIVE_STACK).spawn(move || source.partial(index));
    let outcome = thread.map_err(|problem| fail(problem.to_string()))?.join();
    outcome.map_err(|_| fail("the parser panicked".to_owned()))?.map_err(|problem| fail(problem.to_string()))
}

/// One step of a program; its result is the register of its own number, its operands are earlier registers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Instruction {
    Number(f64),
    Variable(usize),
    Unary(Function, usize),
    Binary(Operation, usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Negate,
    Exp,
    Log,
    Sqrt,
    Sin,
    Cos,
    Tan,
    Tanh,
    Abs,
    /// -1, 0 or 1.
    Sign,
}

impl Function {
    fn apply(self, a: &[f64], out: &mut [f64]) {
        fn each(a: &[f64], out: &mut [f64], f: impl Fn(f64) -> f64) {
            for (out, a) in out.iter_mut().zip(a) {
                *out = f(*a);
            }
        }
        match self {
            Self::Negate => each(a, out, |a| -a),
            Self::Exp => kernels::exp_each(a, out),
            Self::Log => each(a, out, f64::ln),
            Self::Sqrt => each(a, out, f64::sqrt),
            Self::Sin => each(a, out, f64::sin),
            Self::Cos => each(a, out, f64::cos),
            Self::Tan => each(a, out, f64::tan),
            Self::Tanh => each(a, out, f64::tanh),
            Self::Abs => each(a, out, f64::abs),
            // At the kink of the absolute value 0 is the slope that favours neither side.
            Self::Sign => each(a, out, |a| if a == 0.0 { 0.0 } else { a.signum() }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
    /// Product in a derivative, see [`limit`].
    LimitMultiply,
    /// Quotient in a derivative, see [`limit`].
    LimitDivide,
}

/// `value` of an operation on `a` and `b`, or 0 where that is 0 * inf, inf / inf or 0 / 0.
///
/// In a derivative these arise where an intermediate value overflowed or vanished while the result has its limit, e.g.
/// in the tail of a logistic, where exp(800) / (1 + exp(800))^2 is 0 to working precision, or in x^p log(x) at x = 0.
/// Taken as NaN they would also spoil the terms that are added to them.
fn limit(a: f64, b: f64, value: f64) -> f64 {
    if value.is_nan() & !a.is_nan() & !b.is_nan() { 0.0 } else { value }
}

impl Operation {
    fn apply(self, a: &[f64], b: &[f64], out: &mut [f64]) {
        fn each(a: &[f64], b: &[f64], out: &mut [f64], f: impl Fn(f64, f64) -> f64) {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = f(*a, *b);
            }
        }
        match self {
            Self::Add => each(a, b, out, |a, b| a + b),
            Self::Subtract => each(a, b, out, |a, b| a - b),
            Self::Multiply => each(a, b, out, |a, b| a * b),
            Self::Divide => each(a, b, out, |a, b| a / b),
            Self::Power => each(a, b, out, f64::powf),
            Self::LimitMultiply => each(a, b, out, |a, b| limit(a, b, a * b)),
            Self::LimitDivide => each(a, b, out, |a, b| limit(a, b, a / b)),
        }
    }
}

/// What the parser computes with: evaluated once with terms for its variables, its expression becomes one term, from
/// which the program is written. This opens to batches what the parser itself evaluates one value at a time.
#[derive(Clone, Debug, PartialEq)]
enum Term {
    Number(f64),
    Variable(usize),
    Unary(Function, Arc<Term>),
    Binary(Operation, Arc<Term>, Arc<Term>),
}

impl Term {
    fn unary(function: Function, a: Term) -> Term {
        match (function, a) {
            (_, Term::Number(a)) => {
                let mut value = [0.0];
                function.apply(&[a], &mut value);
                Term::Number(value[0])
            }
            (Function::Negate, Term::Unary(Function::Negate, a)) => Arc::unwrap_or_clone(a),
            (_, a) => Term::Unary(function, Arc::new(a)),
        }
    }

    fn binary(operation: Operation, a: Term, b: Term) -> Term {
        use Operation::{Add, Divide, Multiply, Power, Subtract};
        match (operation, a, b) {
            (_, Term::Number(a), Term::Number(b)) => {
                let mut value = [0.0];
                operation.apply(&[a], &[b], &mut value);
                Term::Number(value[0])
            }
            (Add, Term::Number(0.0), other) | (Add | Subtract, other, Term::Number(0.0)) => other,
            (Subtract, Term::Number(0.0), b) => Term::unary(Function::Negate, b),
            // Derivatives abound in these; taken literally, 0 * log(x) would be NaN where x is negative.
            (Multiply | Divide, Term::Number(0.0), _) | (Multiply, _, Term::Number(0.0)) => Term::Number(0.0),
            (Multiply, Term::Number(1.0), other) | (Multiply | Divide | Power, other, Term::Number(1.0)) => other,
            // Rounded correctly, and tenfold faster than the general power.
            (Power, a, Term::Number(2.0)) => {
                let a = Arc::new(a);
                Term::Binary(Multiply, Arc::clone(&a), a)
            }
            (_, a, b) => Term::Binary(operation, Arc::new(a), Arc::new(b)),
        }
    }

    /// Appends the instructions for this term, each kind of result once, and returns the register that holds it.
    fn emit(&self, program: &mut Vec<Instruction>) -> usize {
        let instruction = match self {
            Self::Number(value) => Instruction::Number(*value),
            Self::Variable(index) => Instruction::Variable(*index),
            Self::Unary(function, a) => Instruction::Unary(*function, a.emit(program)),
            Self::Binary(operation, a, b) => {
                let a = a.emit(program);
                Instruction::Binary(*operation, a, b.emit(program))
            }
        };
        program.iter().position(|earlier| *earlier == instruction).unwrap_or_else(|| {
            program.push(instruction);
            program.len() - 1
        })
    }
}

impl Default for Term {
    fn default() -> Self {
        Self::Number(0.0)
    }
}

impl From<f32> for Term {
    fn from(value: f32) -> Self {
        Self::Number(value.into())
    }
}

impl From<u8> for Term {
    fn from(value: u8) -> Self {
        Self::Number(value.into())
    }
}

impl FromStr for Term {
    type Err = std::num::ParseFloatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::Number)
    }
}

/// The parser's table of operators.
#[derive(Clone, Debug)]
struct Operators;

impl MakeOperators<Term> for Operators {
    fn make<'a>() -> Vec<Operator<'a, Term>> {
        // "Commutative" would let the parser fold `x + 1 + 2` from the right, and then it applies the function around
        // such a sum to `1 + 2` alone.
        fn binary(apply: fn(Term, Term) -> Term, prio: i64) -> BinOp<Term> {
            BinOp { apply, prio, is_commutative: false }
        }
        let mut operators = vec![
            Operator::make_bin_unary("+", binary(|a, b| Term::binary(Operation::Add, a, b), 0), |a| a),
            Operator::make_bin_unary("-", binary(|a, b| Term::binary(Operation::Subtract, a, b), 0), |a| {
                Term::unary(Function::Negate, a)
            }),
            Operator::make_bin("*", binary(|a, b| Term::binary(Operation::Multiply, a, b), 1)),
            Operator::make_bin("/", binary(|a, b| Term::binary(Operation::Divide, a, b), 1)),
            Operator::make_bin("^", binary(|a, b| Term::binary(Operation::Power, a, b), 2)),
            Operator::make_unary("exp", |a| Term::unary(Function::Exp, a)),
            Operator::make_unary("log", |a| Term::unary(Function::Log, a)),
            Operator::make_unary("ln", |a| Term::unary(Function::Log, a)),
            Operator::make_unary("sqrt", |a| Term::unary(Function::Sqrt, a)),
            Operator::make_unary("sin", |a| Term::unary(Function::Sin, a)),
            Operator::make_unary("cos", |a| Term::unary(Function::Cos, a)),
            Operator::make_unary("tan", |a| Term::unary(Function::Tan, a)),
            Operator::make_unary("tanh", |a| Term::unary(Function::Tanh, a)),
            Operator::make_unary(ABS, |a| Term::unary(Function::Abs, a)),
            Operator::make_unary(SIGN, |a| Term::unary(Function::Sign, a)),
        ];
        operators.extend(CONSTANTS.map(|(name, value)| Operator::make_constant(name, Term::Number(value))));
        operators
    }
}

/// Numbers as the parser shall see them, with exponents, which it does not know by itself.
#[derive(Clone, Debug)]
struct Literals;

impl MatchLiteral for Literals {
    fn is_literal(text: &str) -> Option<&str> {
        leading_number(text)
    }
}

/// The number that `text` starts with: `2`, `.5`, `1.5e-3`.
fn leading_number(text: &str) -> Option<&str> {
    let digits = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(0);
    let mut end = whole;
    if text[end..].starts_with('.') {
        let fraction = digits(end + 1);
        if whole + fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    }
    if end == 0 {
        return None;
    }
    let mut exponent = text[end..].bytes();
    if matches!(exponent.next(), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(exponent.next(), Some(b'+' | b'-')));
        let power = digits(end + 1 + sign);
        if power > 0 {
            end += 1 + sign + power;
        }
    }
    Some(&text[..end])
}

struct Token<'a> {
    text: &'a str,
    /// In characters, from 1.
    column: usize,
}

impl Token<'_> {
    fn is_name(&self) -> bool {
        self.text.starts_with(starts_name)
    }
}

fn starts_name(character: char) -> bool {
    character.is_alphabetic() || character == '_'
}

fn place(text: &str) -> String {
    format!("expression `{text}`")
}

fn tokenize(text: &str) -> Result<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(character) = rest.chars().next() {
        let column = text[..text.len() - rest.len()].chars().count() + 1;
        let length = if let Some(number) = leading_number(rest) {
            number.len()
        } else if starts_name(character) {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if "+-*/^()".contains(character) {
            1
        } else {
            let found = format!("`{character}` at column {column} has no meaning here");
            let repair = "write numbers, names, + - * / ^ and parentheses";
            return Err(Error::invalid(place(text), found, repair));
        };
        tokens.push(Token { text: &rest[..length], column });
        rest = rest[length..].trim_start();
    }
    if tokens.len() > MOST_TOKENS {
        let found = format!("{} numbers, names and signs, more than {MOST_TOKENS}", tokens.len());
        return Err(Error::invalid("expression", found, "shorten it, or write the surrogate in code"));
    }
    Ok(tokens)
}

fn check_names(text: &str, tokens: &[Token], variables: &[&str]) -> Result<()> {
    for Token { text: name, column } in tokens.iter().filter(|token| token.is_name()) {
        let reserved = FUNCTIONS.contains(name) || CONSTANTS.iter().any(|(constant, _)| constant == name);
        match (reserved, variables.contains(name)) {
            (true, true) => {
                let found = format!("`{name}` at column {column} is a variable, but also a function or constant");
                return Err(Error::invalid(place(text), found, "rename the variable"));
            }
            (false, false) => return Err(unknown_name(&place(text), name, variables.to_vec())),
            _ => {}
        }
    }
    Ok(())
}

fn unknown_name(place: &str, name: &str, variables: Vec<&str>) -> Error {
    let distance = |known: &&str| strsim::damerau_levenshtein(name, known);
    // Beyond half of its letters the other word is not a misspelling of this one.
    let nearest = variables.iter().copied().chain(FUNCTIONS).min_by_key(distance);
    let nearest = nearest.filter(|known| 2 * distance(known) <= name.chars().count());
    let question = nearest.map(|known| format!("did you mean `{known}`? ")).unwrap_or_default();
    let repair = format!("{question}known variables: {}; functions: {}", variables.join(", "), FUNCTIONS.join(", "));
    Error::invalid(place, format!("unknown name `{name}`"), repair)
}

/// Values and operators alternate, functions have parentheses, parentheses match. Stricter than the parser, which
/// takes `* x y` for a product and `exp + x` for a function value.
fn check_order(text: &str, tokens: &[Token]) -> Result<()> {
    let fail = |found: String, repair: &str| Err(Error::invalid(place(text), found, repair));
    let mut expects_value = true;
    let mut open = Vec::new();
    for (k, token) in tokens.iter().enumerate() {
        let spot = format!("`{}` at column {}", token.text, token.column);
        let is_function = FUNCTIONS.contains(&token.text);
        let is_operator = ["*", "/", "^"].contains(&token.text);
        let is_sign = ["+", "-"].contains(&token.text);
        let closes = token.text == ")";
        if expects_value && token.text == "*" && k > 0 && tokens[k - 1].text == "*" {
            return fail(format!("`**` at column {} is no operator", tokens[k - 1].column), "write powers with `^`");
        }
        if expects_value && (is_operator || closes) {
            return fail(format!("a value is missing before {spot}"), "insert it or remove the sign");
        }
        if !(expects_value || is_operator || is_sign || closes) {
            return fail(format!("an operator is missing before {spot}"), "write products with `*`");
        }
        if is_function && tokens.get(k + 1).is_none_or(|next| next.text != "(") {
            return fail(format!("{spot} is a function without argument"), "put its argument into parentheses");
        }
        if token.text == "(" {
            open.push(token.column);
        } else if closes && open.pop().is_none() {
            return fail(format!("{spot} closes nothing"), "remove it or open a parenthesis before");
        }
        expects_value = is_operator || is_sign || is_function || token.text == "(";
    }
    if expects_value {
        return fail("a value is missing at the end".to_owned(), "complete the expression");
    }
    match open.last() {
        Some(column) => fail(format!("`(` at column {column} is never closed"), "close it"),
        None => Ok(()),
    }
}

/// The text for the parser, which differs from mathematics in three points, from tokens in proper order.
///
/// It reads `-x^2` as `(-x)^2` and `a^b^c` as `(a^b)^c`, so that powers get parentheses; it cannot differentiate `abs`,
/// which therefore goes by another name; and it restricts the letters of a variable unless that stands in braces.
fn respell(mut tokens: Vec<&str>, variables: &[&str]) -> String {
    // From right to left, so that an exponent that is a power itself has its parentheses already.
    let mut before = tokens.len();
    while let Some(at) = tokens[..before].iter().rposition(|token| *token == "^") {
        tokens.insert(operand_end(&tokens, at + 1), ")");
        tokens.insert(operand_start(&tokens, at), "(");
        before = at + 1;
    }
    let spell = |token: &str| match token {
        "abs" => ABS.to_owned(),
        _ if variables.contains(&token) => format!("{{{token}}}"),
        _ => token.to_owned(),
    };
    tokens.into_iter().map(spell).collect::<Vec<_>>().join(" ")
}

/// One past the operand that starts at `start`: signs, function name and parenthesis, or a single number or name.
fn operand_end(tokens: &[&str], start: usize) -> usize {
    let mut end = start;
    let mut depth = 0_usize;
    loop {
        let token = tokens[end];
        end += 1;
        match token {
            "(" => depth += 1,
            ")" => depth -= 1,
            "+" | "-" => continue,
            _ if FUNCTIONS.contains(&token) => continue,
            _ => {}
        }
        if depth == 0 {
            return end;
        }
    }
}

/// The start of the operand that stands before `end`: function name and parenthesis, or a single number or name.
fn operand_start(tokens: &[&str], end: usize) -> usize {
    let mut start = end;
    let mut depth = 0_usize;
    loop {
        start -= 1;
        match tokens[start] {
            ")" => depth += 1,
            "(" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    if tokens[start] == "(" && start > 0 && FUNCTIONS.contains(&tokens[start - 1]) { start - 1 } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_formula_is_read_or_refused(text in "([-+*/^() ]{0,3}(x|y|z|exp|log|sqrt|[0-9]{1,2}|[.]5|1e[0-9]{1,3})){0,6}[)]{0,2}") {
            if let Ok(expression) = Expression::parse(&text, &["x", "y"]) {
                let _ = expression.eval_scalar(&[0.5, -2.0]);
            }
        }
    }

    fn parse(text: &str) -> Expression {
        Expression::parse(text, &["x", "y"]).unwrap()
    }

    /// The fractional parts of multiples of the golden ratio: evenly spread numbers in [0, 1).
    fn spread(k: usize) -> f64 {
        (k as f64 * 0.618_033_988_749_894_9).fract()
    }

    #[test]
    fn precedence_is_that_of_mathematics() {
        // Every intermediate value is a small integer or dyadic fraction: exact.
        for (text, expected) in [
            ("-x^2", -9.0),
            ("2^-y^2", 0.0625),
            ("2^x^y", 512.0),
            ("(2^x)^y", 64.0),
            ("-y^-y", -0.25),
            ("1 - x - y", -4.0),
            ("x - y + 1", 2.0),
            ("8 / y / y * x", 6.0),
            ("2*-x*y", -12.0),
            ("x--y", 5.0),
            ("-(x + y)*y", -10.0),
            ("sqrt(x + 4 + 2)^2*y", 18.0),
            ("abs(-x)^2 - abs(y - x - 1)", 7.0),
            ("1.5e1 + .5E+1 - 2.", 18.0),
            ("\n x\t*\n y ", 6.0),
        ] {
            assert_eq!(parse(text).eval_scalar(&[3.0, 2.0]), expected, "{text}");
        }
        assert_eq!(parse("pi*e").eval_scalar(&[0.0, 0.0]), std::f64::consts::PI * std::f64::consts::E);
    }

    /// A random expression with as few parentheses as possible: text, binding strength and value.
    /// The exponential that programs use.
    fn kernel_exp(a: f64) -> f64 {
        let mut out = [0.0];
        kernels::exp_each(&[a], &mut out);
        out[0]
    }

    fn random_expression(depth: usize, state: &mut u64) -> (String, u8, f64) {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let kind = *state >> 60;
        let group = |(text, strength, value): (String, u8, f64), least: u8| {
            (if strength < least { format!("({text})") } else { text }, value)
        };
        match kind {
            _ if depth == 0 => match kind % 4 {
                0 => ("x".into(), 4, 1.25),
                1 => ("y".into(), 4, 0.7),
                // Differs everywhere, since a constant difference of 0 would simplify away NaN and the sign of 0.
                _ => {
                    let value = 0.3 + (*state >> 20) as f64 / 2_f64.powi(44);
                    (value.to_string(), 4, value)
                }
            },
            0..4 | 8..11 => {
                let (sign, strength, f): (_, _, fn(f64, f64) -> f64) = match kind {
                    0 | 1 => ("+", 0, |a, b| a + b),
                    2 | 3 => ("-", 0, |a, b| a - b),
                    8 | 9 => ("*", 1, |a, b| a * b),
                    _ => ("/", 1, |a, b| a / b),
                };
                let (left, a) = group(random_expression(depth - 1, state), strength);
                let (right, b) = group(random_expression(depth - 1, state), strength + 1);
                (format!("{left}{sign}{right}"), strength, f(a, b))
            }
            4 => {
                let (base, a) = group(random_expression(depth - 1, state), 4);
                (format!("{base}^2"), 3, a * a)
            }
            5 => {
                let (base, a) = group(random_expression(depth - 1, state), 4);
                let (exponent, b) = group(random_expression(depth - 1, state), 2);
                (format!("{base}^{exponent}"), 3, a.powf(b))
            }
            6 | 7 => {
                let (text, a) = group(random_expression(depth - 1, state), 2);
                (format!("-{text}"), 2, -a)
            }
            _ => {
                let (name, f): (_, fn(f64) -> f64) = match kind {
                    11 => ("exp", kernel_exp),
                    12 => ("tanh", f64::tanh),
                    13 => ("abs", f64::abs),
                    14 => ("sin", f64::sin),
                    _ => ("log", f64::ln),
                };
                let (text, _, a) = random_expression(depth - 1, state);
                (format!("{name}({text})"), 4, f(a))
            }
        }
    }

    #[test]
    fn random_expressions_are_read_as_they_were_written() {
        let mut state = 20_250_101;
        let mut n_compared = 0;
        for _ in 0..2000 {
            let (text, _, expected) = random_expression(4, &mut state);
            let value = parse(&text).eval_scalar(&[1.25, 0.7]);
            // The same operations in the same order, hence no tolerance.
            assert!(value == expected || (value.is_nan() && expected.is_nan()), "{text}: {value}, not {expected}");
            n_compared += usize::from(!expected.is_nan());
        }
        assert!(n_compared > 1000, "{n_compared}");
    }

    #[test]
    fn derivatives_follow_their_closed_forms() {
        let (x, y) = (-0.8_f64, 1.7_f64);
        for (text, d_x, d_y) in [
            ("exp(x*y)", y * (x * y).exp(), x * (x * y).exp()),
            ("log(x^2 + y)", 2.0 * x / (x * x + y), 1.0 / (x * x + y)),
            ("ln(y)*x", y.ln(), x / y),
            ("sqrt(y - x)", -0.5 / (y - x).sqrt(), 0.5 / (y - x).sqrt()),
            ("sin(2*x)*cos(y)", 2.0 * (2.0 * x).cos() * y.cos(), -(2.0 * x).sin() * y.sin()),
            ("tan(x)", x.cos().powi(-2), 0.0),
            ("tanh(x + y)", (x + y).cosh().powi(-2), (x + y).cosh().powi(-2)),
            ("abs(x)*y", -y, -x),
            ("x^3 - x/y", 3.0 * x * x - 1.0 / y, x / (y * y)),
            ("y^-x", -y.powf(-x) * y.ln(), -x * y.powf(-x - 1.0)),
            ("exp(x + 1 + 2)", (x + 3.0).exp(), 0.0),
        ] {
            for (variable, expected) in [("x", d_x), ("y", d_y)] {
                let value = parse(text).derivative(variable).unwrap().eval_scalar(&[x, y]);
                // No sum here cancels by more than a factor of 4, and no more than 16 roundings enter.
                assert!(
                    (value - expected).abs() <= 64.0 * f64::EPSILON * expected.abs(),
                    "{text}, {variable}: {value}"
                );
            }
        }
        // An absolute value has slope 0 at its kink, without harm to what is added to it.
        assert_eq!(parse("abs(x - y) + 3*x").derivative("x").unwrap().eval_scalar(&[2.0, 2.0]), 3.0);
        assert!(parse("abs(x)").derivative("x").unwrap().derivative("x").is_err());
        let second = parse("x^3").derivative("x").unwrap().derivative("x").unwrap();
        assert_eq!(second.eval_scalar(&[2.0, 0.0]), 12.0);
    }

    #[test]
    fn overflow_in_a_derivative_leaves_its_limit() {
        let logistic = parse("y*x + 2/(1 + exp(-x*y))");
        // 2 exp(800) / (1 + exp(800))^2 is inf / inf; beside it stands the derivative of y*x.
        assert_eq!(logistic.derivative("x").unwrap().eval_scalar(&[-800.0, 1.0]), 1.0);
        assert_eq!(logistic.derivative("y").unwrap().eval_scalar(&[-800.0, 1.0]), -800.0);
        // x^y log(x) is 0 * inf.
        assert_eq!(parse("x^y + y").derivative("y").unwrap().eval_scalar(&[0.0, 2.0]), 1.0);
        // What is undefined stays so.
        assert!(parse("x*log(y)").derivative("x").unwrap().eval_scalar(&[1.0, -1.0]).is_nan());
    }

    #[test]
    fn constants_drop_out_of_programs() {
        assert_eq!(parse("0*log(x) + y").variables_used(), [1]);
        assert_eq!(parse("x^2*y").derivative("y").unwrap().variables_used(), [0]);
        assert_eq!(parse("x").derivative("y").unwrap().eval_scalar(&[2.0, 3.0]), 0.0);
        assert_eq!(parse("exp(-x)/(1 + exp(-x))").program.len(), 6, "exp(-x) is computed once");
    }

    #[test]
    fn a_batch_equals_its_draws_bit_for_bit() {
        let expression = parse("y^x / (1 + exp(-x*y)) + sin(3*x)");
        let mut registers = Vec::new();
        for n in [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 1, 5] {
            let draws: Vec<f64> = (0..n).map(|k| 4.0 * spread(k) - 2.0).collect();
            let mut out = vec![f64::NAN; n];
            let argument = |k| if k == 0 { Argument::Slice(&draws) } else { Argument::Scalar(1.3) };
            expression.eval(argument, &mut out, &mut registers);
            assert!(out.iter().zip(&draws).all(|(value, x)| *value == expression.eval_scalar(&[*x, 1.3])));
        }
        assert_eq!(registers.len(), expression.program.len() * BLOCK, "registers do not grow with the batch");
    }

    #[test]
    fn long_expressions_are_differentiated_or_refused() {
        let sum = vec!["x"; MOST_TOKENS / 2].join("+");
        assert_eq!(parse(&sum).derivative("x").unwrap().eval_scalar(&[1.0, 1.0]), (MOST_TOKENS / 2) as f64);
        let message = Expression::parse(&format!("{sum}+{sum}"), &["x"]).unwrap_err().to_string();
        assert!(message.contains("more than 300"), "{message}");
    }

    #[test]
    fn errors_name_the_place_and_the_repair() {
        for (text, expected) in [
            ("alpha*omga", "unknown name `omga`; did you mean `omega`? known variables: omega, alpha, e"),
            ("expp(omega)", "did you mean `exp`?"),
            ("alpha*zzzzzz", "unknown name `zzzzzz`; known variables"),
            ("e*omega", "`e` at column 1 is a variable, but also a function or constant"),
            ("2 omega", "an operator is missing before `omega` at column 3"),
            ("(alpha)(omega)", "an operator is missing before `(` at column 8"),
            ("1.5.2", "an operator is missing before `.2` at column 4"),
            ("alpha + * omega", "a value is missing before `*` at column 9"),
            ("alpha ** omega", "`**` at column 7 is no operator; write powers with `^`"),
            ("* alpha omega", "a value is missing before `*` at column 1"),
            ("()", "a value is missing before `)` at column 2"),
            ("alpha -", "a value is missing at the end"),
            ("", "a value is missing at the end"),
            ("exp + omega", "`exp` at column 1 is a function without argument"),
            ("alpha*(omega", "`(` at column 7 is never closed"),
            ("alpha)*omega", "`)` at column 6 closes nothing"),
            ("alpha % omega", "`%` at column 7 has no meaning here"),
            ("alpha + {omega}", "`{` at column 9"),
            (".", "`.` at column 1"),
        ] {
            let message = Expression::parse(text, &["omega", "alpha", "e"]).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
            assert!(message.contains(&format!("expression `{text}`")), "{text}: {message}");
        }
        assert!(parse("x").derivative("z").unwrap_err().to_string().contains("known variables: x, y"));
        assert_eq!(Expression::parse("été + x", &["x", "été"]).unwrap().eval_scalar(&[1.0, 2.0]), 3.0);
    }
}
