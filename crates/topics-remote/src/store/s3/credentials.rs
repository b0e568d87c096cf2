//! Where the credentials of requests come from, and what is said when there are none.
//!
//! The thread of the requests waits for credentials, and for nothing that may hang: [`RenewedCredentials`] asks
//! its owner for new ones, goes on with those that it has until they expire, and gives up after a time.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::{CredentialProvider, Error};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use topics_env::sync::Mutex;

use super::with_cause;

/// How long before their end credentials are renewed; those that live shorter at half of their time.
const LEAD: Duration = Duration::from_secs(300);
/// How long a request waits for credentials.
const WAIT: Duration = Duration::from_secs(30);
/// How long the owner is not asked again after a failure.
const PAUSE: Duration = Duration::from_secs(10);
/// After this time an unanswered question counts as hung, and another one is asked.
const HUNG: Duration = Duration::from_secs(60);
/// Maximum number of questions without an answer.
const MAX_ASKED: usize = 4;

/// What signs requests.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub id: String,
    pub secret: String,
    /// The token of temporary credentials.
    pub token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(…)")
    }
}

impl From<Keys> for AwsCredential {
    fn from(keys: Keys) -> Self {
        Self { key_id: keys.id, secret_key: keys.secret, token: keys.token }
    }
}

/// Where the credentials of a store come from.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// A key or a web identity in the environment, else the container or the instance.
    Environment,
    Fixed(Keys),
    Renewed(RenewedCredentials),
}

/// A request was not sent, because it cannot be signed.
#[derive(Debug)]
pub(super) struct CredentialsError {
    pub text: String,
    /// Whether there will be none as long as the process runs.
    pub is_final: bool,
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CredentialsError {}

fn failed(text: String, is_final: bool) -> Error {
    Error::Generic { store: "S3", source: Box::new(CredentialsError { text, is_final }) }
}

/// Credentials of `object_store`, whose errors say where they were looked for.
#[derive(Debug)]
pub(super) struct Explained {
    pub inner: AwsCredentialProvider,
    /// Where the credentials should come from.
    pub place: &'static str,
    /// What to do without them.
    pub advice: &'static str,
}

#[async_trait]
impl CredentialProvider for Explained {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.inner.get_credential().await.map_err(|e| {
            let cause = with_cause(&e);
            failed(format!("no credentials from {}: {cause}. {}", self.place, self.advice), false)
        })
    }
}

/// No credentials: every request fails before it is sent.
#[derive(Debug)]
pub(super) struct NoCredentials(pub String);

#[async_trait]
impl CredentialProvider for NoCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        Err(failed(self.0.clone(), true))
    }
}

/// Credentials that their owner is asked for, and again before they expire.
#[derive(Clone)]
pub struct RenewedCredentials(Arc<Renewed>);

struct Renewed {
    state: Mutex<State>,
    answered: watch::Sender<()>,
    /// Asks the owner, who answers later.
    ask: Box<dyn Fn() + Send + Sync>,
    /// What the credentials are of.
    place: String,
    /// What to do without them.
    advice: String,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    failure: Option<(Instant, String)>,
    /// When the question was asked that is waited for.
    asked: Option<Instant>,
    /// Questions without an answer, hung ones too.
    unanswered: usize,
}

struct Current {
    keys: Arc<AwsCredential>,
    /// When they are renewed, and when they expire; `None`: never.
    times: Option<(Instant, Instant)>,
}

impl fmt::Debug for RenewedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RenewedCredentials({})", self.0.place)
    }
}

impl RenewedCredentials {
    /// Credentials of a `place`; `ask` does not block. It is dropped with the last store of these
    /// credentials.
    #[must_use]
    pub fn new(place: String, advice: String, ask: impl Fn() + Send + Sync + 'static) -> Self {
        let (state, answered) = (Mutex::default(), watch::Sender::new(()));
        Self(Arc::new(Renewed { state, answered, ask: Box::new(ask), place, advice }))
    }

    /// Where the owner puts its answers.
    #[must_use]
    pub fn answers(&self) -> CredentialAnswers {
        CredentialAnswers(Arc::downgrade(&self.0))
    }

    fn failed(&self, why: &str) -> Error {
        let Renewed { place, advice, .. } = &*self.0;
        failed(format!("no credentials from {place}: {why}. {advice}"), false)
    }

    /// The credentials of a request; `None`: those that come with the next answer.
    fn usable(&self, now: Instant) -> object_store::Result<Option<Arc<AwsCredential>>> {
        let mut state = self.0.state.lock();
        let (usable, is_fresh) = match &state.current {
            None => (None, false),
            Some(Current { keys, times: None }) => (Some(keys.clone()), true),
            Some(Current { keys, times: Some((due, end)) }) => {
                ((now < *end).then(|| keys.clone()), now < *due)
            }
        };
        if is_fresh {
            return Ok(usable);
        }
        if let Some((at, why)) = &state.failure
            && now < *at + PAUSE
        {
            return if usable.is_some() { Ok(usable) } else { Err(self.failed(why)) };
        }
        let is_waiting = state.asked.is_some_and(|at| now < at + HUNG);
        if !is_waiting && state.unanswered < MAX_ASKED {
            state.asked = Some(now);
            state.unanswered += 1;
            drop(state);
            (self.0.ask)();
        }
        Ok(usable)
    }
}

#[async_trait]
impl CredentialProvider for RenewedCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut answers = self.0.answered.subscribe();
        let wait = async {
            loop {
                if let Some(keys) = self.usable(Instant::now())? {
                    return Ok(keys);
                }
                // The sender lives as long as this.
                let _ = answers.changed().await;
            }
        };
        match timeout(WAIT, wait).await {
            Ok(found) => found,
            Err(_) => Err(self.failed(&format!("no answer within {WAIT:?}"))),
        }
    }
}

/// Takes the answers of the owner of [`RenewedCredentials`]. It does not keep them alive.
#[derive(Clone, Debug)]
pub struct CredentialAnswers(Weak<Renewed>);

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

impl CredentialAnswers {
    /// Answers a question: with keys and how long they live (`None`: for ever), or with why there are none.
    pub fn put(&self, answer: Result<(Keys, Option<Duration>), String>) {
        let Some(renewed) = self.0.upgrade() else { return };
        renewed.answer(Instant::now(), answer);
    }
}

impl Renewed {
    fn answer(&self, now: Instant, answer: Result<(Keys, Option<Duration>), String>) {
        let mut state = self.state.lock();
        state.asked = None;
        state.unanswered = state.unanswered.saturating_sub(1);
        match answer {
            Ok((_, Some(Duration::ZERO))) => {
                state.failure = Some((now, "they have expired".to_owned()));
            }
            Ok((keys, life)) => {
                let times = life.map(|life| (now + (life - LEAD.min(life / 2)), now + life));
                state.current = Some(Current { keys: Arc::new(keys.into()), times });
                state.failure = None;
            }
            Err(why) => state.failure = Some((now, why)),
        }
        drop(state);
        self.answered.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn keys(id: &str) -> Keys {
        Keys { id: id.to_owned(), secret: "hidden".to_owned(), token: None }
    }

    /// Credentials, and how often they were asked for.
    fn renewed() -> (RenewedCredentials, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let ask = move || _ = count.fetch_add(1, Ordering::Relaxed);
        (RenewedCredentials::new("the owner".to_owned(), "Do it".to_owned(), ask), asked)
    }

    fn id(of: &RenewedCredentials, now: Instant) -> Option<String> {
        of.usable(now).unwrap().map(|keys| keys.key_id.clone())
    }

    #[test]
    fn credentials_are_renewed_before_they_expire() {
        let (all, asked) = renewed();
        let now = Instant::now();
        assert_eq!(id(&all, now), None);
        assert_eq!(id(&all, now), None);
        assert_eq!(asked.load(Ordering::Relaxed), 1, "one question at a time");
        all.0.answer(now, Ok((keys("a"), Some(HOUR))));
        let due = now + HOUR - LEAD;
        assert_eq!(id(&all, due - Duration::from_secs(1)).unwrap(), "a");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(id(&all, due).unwrap(), "a", "nothing waits for the renewal");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        all.0.answer(due, Ok((keys("b"), None)));
        assert_eq!(id(&all, due + 1000 * HOUR).unwrap(), "b");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_failed_renewal_leaves_the_old_credentials_until_they_expire() {
        let (all, asked) = renewed();
        let now = Instant::now();
        all.0.answer(now, Ok((keys("a"), Some(HOUR))));
        let due = now + HOUR - LEAD;
        assert_eq!(id(&all, due).unwrap(), "a");
        all.0.answer(due, Err("log in".to_owned()));
        assert_eq!(id(&all, due).unwrap(), "a");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "not at once");
        assert_eq!(id(&all, due + PAUSE).unwrap(), "a");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        all.0.answer(now + HOUR, Err("log in".to_owned()));
        let e = all.usable(now + HOUR).unwrap_err().to_string();
        assert!(e.contains("no credentials from the owner: log in. Do it"), "{e}");
        assert!(all.usable(now + HOUR + PAUSE).unwrap().is_none());
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn hung_questions_are_asked_again_a_few_times() {
        let (all, asked) = renewed();
        let now = Instant::now();
        for n in 0..10 {
            assert_eq!(id(&all, now + n * HUNG), None);
        }
        assert_eq!(asked.load(Ordering::Relaxed), MAX_ASKED);
        all.0.answer(now, Ok((keys("a"), None)));
        assert_eq!(id(&all, now).unwrap(), "a");
    }

    #[test]
    fn answers_do_not_keep_the_credentials_alive() {
        let (all, _) = renewed();
        let answers = all.answers();
        drop(all);
        answers.put(Err("late".to_owned()));
    }

    #[test]
    fn secrets_are_not_shown() {
        let (all, _) = renewed();
        all.answers().put(Ok((keys("a"), None)));
        let shown = format!("{:?} {all:?} {:?}", keys("a"), Credentials::Fixed(keys("a")));
        assert!(!shown.contains("hidden"), "{shown}");
    }
}
