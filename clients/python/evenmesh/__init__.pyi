# The public names, each once: __init__.py loads them from here when they are first used.
# ruff: isort: skip_file

from evenmesh._async.client import AsyncClient as AsyncClient
from evenmesh._async.conversation import AsyncConversation as AsyncConversation
from evenmesh._sync.client import Client as Client
from evenmesh._sync.conversation import Conversation as Conversation
from evenmesh.addresses import Addresses as Addresses
from evenmesh.files.read_error import ReadError as ReadError
from evenmesh.types.audit import (
    AuditReport as AuditReport,
    AuditSample as AuditSample,
    AuditSettled as AuditSettled,
)
from evenmesh.types.collection import (
    Collection as Collection,
    Deleted as Deleted,
    Ingested as Ingested,
    Lexical as Lexical,
)
from evenmesh.types.conversation import (
    CitedEntity as CitedEntity,
    ConversationOptions as ConversationOptions,
    ConversationReport as ConversationReport,
    GroupFairness as GroupFairness,
    GroupTarget as GroupTarget,
    LookedFor as LookedFor,
    TurnResult as TurnResult,
)
from evenmesh.types.events import (
    Answer as Answer,
    AskResult as AskResult,
    Citation as Citation,
    Cost as Cost,
    Degraded as Degraded,
    Delta as Delta,
    Done as Done,
    Event as Event,
    Failed as Failed,
    Ranked as Ranked,
    Report as Report,
    Retrieved as Retrieved,
    Vote as Vote,
)
from evenmesh.types.feedback import (
    AgentSummary as AgentSummary,
    Feedback as Feedback,
    FeedbackResult as FeedbackResult,
    ModelVersion as ModelVersion,
    Recorded as Recorded,
    StoredFeedback as StoredFeedback,
    Training as Training,
    TrainingStatus as TrainingStatus,
)
from evenmesh.types.filters import Between as Between, Filter as Filter
from evenmesh.types.measures import (
    AnsweredQuestion as AnsweredQuestion,
    ArrivedAnswer as ArrivedAnswer,
    AttributeTarget as AttributeTarget,
    Bootstrap as Bootstrap,
    Browsing as Browsing,
    ConversationMeasures as ConversationMeasures,
    ErrorShares as ErrorShares,
    ExposureMeasures as ExposureMeasures,
    FairnessInterval as FairnessInterval,
    GradedDocument as GradedDocument,
    GradedRanking as GradedRanking,
    GroupExposure as GroupExposure,
    Interval as Interval,
    Nugget as Nugget,
    RankedListMeasures as RankedListMeasures,
    RankingMeasures as RankingMeasures,
    RankingQuality as RankingQuality,
    RetrieverComparison as RetrieverComparison,
    SystemComparison as SystemComparison,
    TradeoffMeasures as TradeoffMeasures,
    TradeoffPoint as TradeoffPoint,
    UtilityMeasures as UtilityMeasures,
    VoteProgress as VoteProgress,
    VoteResult as VoteResult,
    VoteWeights as VoteWeights,
    VotingQuestion as VotingQuestion,
    VotingRule as VotingRule,
)
from evenmesh.types.passage import Passage as Passage
from evenmesh.types.policy import (
    Balance as Balance,
    BalanceOffset as BalanceOffset,
    GroupShare as GroupShare,
    GroupShareOutcome as GroupShareOutcome,
    Policy as Policy,
)
from evenmesh.types.reports import (
    Configuration as Configuration,
    ConfigurationSummary as ConfigurationSummary,
    DegradationCount as DegradationCount,
    Estimate as Estimate,
    ExposureShare as ExposureShare,
    Measurement as Measurement,
    ObservedAnswer as ObservedAnswer,
    ObservedAsk as ObservedAsk,
    ObservedPassage as ObservedPassage,
    Run as Run,
    RunReport as RunReport,
)
from evenmesh.types.statements import (
    ExposureStatement as ExposureStatement,
    ProviderBalance as ProviderBalance,
    ProviderExposure as ProviderExposure,
    SignedStatement as SignedStatement,
    StatementSignature as StatementSignature,
)
from evenmesh.types.request import Agent as Agent, AskOptions as AskOptions, Decoding as Decoding
from evenmesh.types.reranking import FirstStage as FirstStage, Reranking as Reranking
from evenmesh.types.retrieval import (
    Embeddings as Embeddings,
    Retrieval as Retrieval,
    RetrieveOptions as RetrieveOptions,
    Retriever as Retriever,
    Source as Source,
)
from evenmesh.types.status import Health as Health, ServiceStatus as ServiceStatus
from evenmesh.wire.errors import MeshError as MeshError
